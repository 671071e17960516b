#!/usr/bin/env bash
# Tests --timeout of the examples: it ends the wait for a missing rank, and bad values are refused
# by name.
#
#   time_out.sh <folder of the programs>
set -euo pipefail
bin=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

has() { # <what>
  grep -qF -- "$1" "$scratch/out" || {
    echo "time_out.sh: no '$1' from $program:" >&2
    cat "$scratch/out" >&2
    exit 1
  }
}

# Rank 1 blocks instead of meeting rank 0.
one_comes() { # <arguments>
  "$bin/tessera-run" --standalone --nproc-per-node 2 --grace-seconds 1 -- \
    sh -c 'if [ "$RANK" = 1 ]; then exec tail -f /dev/null; fi; exec "$@"' sh "$bin/$program" "$@"
}

for program in gpt quickstart memory_compare; do
  if one_comes --timeout=1 >"$scratch/out" 2>&1; then
    echo "time_out.sh: $program did without rank 1" >&2
    exit 1
  fi
  has 'timed out after 1000 ms: rank 1'
  for bad in 0 1.5 ''; do
    if "$bin/$program" --timeout="$bad" >"$scratch/out" 2>&1; then
      echo "time_out.sh: $program took --timeout='$bad'" >&2
      exit 1
    fi
    has "--timeout: got '$bad', expected a whole number of seconds from 1, or none"
  done
  "$bin/$program" --help >"$scratch/out" 2>&1
  has '--timeout=600'
done

# The control: a long enough timeout, and none.
for timeout in 86400 none; do
  program=quickstart
  "$bin/tessera-run" --standalone --nproc-per-node 2 -- "$bin/quickstart" --epochs=1 --timeout=$timeout >"$scratch/out" 2>&1
  has 'world 2: loss '
done
echo '--timeout works'
