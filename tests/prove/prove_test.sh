#!/usr/bin/env bash
# Negative control of prove.py: it must fail if every job makes a mistake or fails.
#   prove_test.sh <folder of the programs>
set -euo pipefail
bin=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
ln -s "$bin"/{prove_reference,tessera-run} "$scratch"

expect() {  # exit code, line, commands of the program
  local code=0
  printf '#!/bin/sh\n%s\n' "$3" >"$scratch/prove_training"
  chmod +x "$scratch/prove_training"
  python3 -B "$here/prove.py" --quick "$scratch" >"$scratch/out" 2>&1 || code=$?
  if [[ $code -ne $1 ]] || ! grep -qE "$2" "$scratch/out"; then
    echo "prove_test.sh: expected code $1 and '$2' of '$3', got code $code:" >&2
    cat "$scratch/out" >&2
    exit 1
  fi
}

# All configurations skip the same reduction: they equal each other, but not LibTorch alone.
expect 1 '2 x ddp, fp32 = LibTorch alone.*<-- FAILS' \
  "exec '$bin/prove_training' --control=skip_reduction \"\$@\""
expect 1 '^[0-9]+ of [0-9]+ claims fail' 'exit 3'
rm "$scratch/tessera-run"
expect 2 'not in .*: tessera-run; run .make prove' 'exit 3'
