#!/usr/bin/env bash
# Runs quickstart and a tiny gpt under all strategies and compares what they print, character for character.
#
#   equal_strategies.sh <folder of the programs> <ranks> <text>     1 rank runs without the launcher
set -euo pipefail
bin=$1 ranks=$2 text=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

run() {
  if [[ $ranks -eq 1 ]]; then
    "$@"
  else
    "$bin/tessera-run" --standalone --nproc-per-node "$ranks" -- "$@"
  fi
}

quickstart() { # <strategy>
  run "$bin/quickstart" --strategy="$1" --epochs=3 | grep -o 'world .*parameters .*'
}

gpt() { # <strategy> <further arguments>
  local strategy=$1
  shift
  run "$bin/gpt" --strategy="$strategy" --data="$text" --layers=1 --heads=2 --width=36 --context=32 \
    --batch=2 --steps=4 --warmup=2 --eval_every=2 --eval_batches=4 --sample_bytes=16 --prompt=int \
    --memory --losses_out="$scratch/losses" "$@" >"$scratch/out"
  [[ $(wc -l <"$scratch/losses") -eq 4 ]]
  [[ $(grep -c "^\(\[0\] \)\?$strategy *rank [0-9]* *measured" "$scratch/out") -eq $ranks ]]
  cat "$scratch/losses"
  # Neither speed nor memory, but the hash and the sample.
  grep -v -E 'tok/s|rank|tokens per step' "$scratch/out"
}

same() { # <program> <arguments>: under all strategies
  local program=$1 strategy
  shift
  for strategy in ddp zero1 zero2; do "$program" "$strategy" "$@" >"$scratch/$strategy"; done
  grep -q 'parameters  *[0-9a-f]\{16\}' "$scratch/ddp"
  diff "$scratch/ddp" "$scratch/zero1"
  diff "$scratch/ddp" "$scratch/zero2"
}

same quickstart
same gpt
same gpt --accumulate=3
cp "$scratch/ddp" "$scratch/reduced_each"
same gpt --accumulate=3 --no_sync

# The comparison can fail: another seed trains another model.
gpt ddp --accumulate=3 --seed=2 >"$scratch/other"
if diff -q "$scratch/reduced_each" "$scratch/other" >/dev/null; then
  echo "equal_strategies.sh: two seeds gave the same output: nothing was compared" >&2
  exit 1
fi
echo "all strategies are equal on $ranks rank(s)"
