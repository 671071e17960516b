#!/usr/bin/env bash
# Runs quickstart, lora, digits and a tiny gpt under all strategies and compares their output
# character by character.
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

lora() { # <strategy>
  run "$bin/lora" --strategy="$1" --steps=10 | grep -o 'world .*parameters .*'
}

digits() { # <strategy>
  run "$bin/digits" --strategy="$1" --epochs=1 | grep -o 'world .*parameters .*'
}

gpt() { # <strategy and its flags> <further arguments>
  local -a row=($1)
  shift
  run "$bin/gpt" --strategy="${row[@]}" --data="$text" --layers=3 --heads=2 --width=36 --context=32 \
    --batch=2 --steps=4 --warmup=2 --eval_every=2 --eval_batches=4 --sample_bytes=16 --prompt=int \
    --memory --losses_out="$scratch/losses" "$@" >"$scratch/out"
  [[ $(wc -l <"$scratch/losses") -eq 4 ]]
  [[ $(grep -c "^\(\[0\] \)\?${row[0]} *rank [0-9]* *measured" "$scratch/out") -eq $ranks ]]
  cat "$scratch/losses"
  # Compares the hash and the sample, but not speed and memory.
  grep -v -E 'tok/s|rank|memory, MiB|tokens per step' "$scratch/out"
}

# same <program> <arguments> -- <rows>: every row must print the same as ddp.
same() {
  local program=$1 row
  local -a arguments=()
  shift
  while [[ $1 != -- ]]; do
    arguments+=("$1")
    shift
  done
  shift
  "$program" ddp "${arguments[@]}" >"$scratch/ddp"
  grep -q 'parameters  *[0-9a-f]\{16\}' "$scratch/ddp"
  for row in "$@"; do
    "$program" "$row" "${arguments[@]}" >"$scratch/other"
    diff "$scratch/ddp" "$scratch/other" || {
      echo "equal_strategies.sh: $program $row ${arguments[*]} differs from ddp (above)" >&2
      exit 1
    }
  done
}

rows=(zero1 zero2 zero3 'zero3 --reshard_after_forward=1')
case $ranks in
  1) rows+=('hybrid --degrees=1,1,1') ;;
  2) rows+=('hybrid --degrees=1,2,2' 'hybrid --degrees=2,2,2') ;;
  3) rows+=('hybrid --degrees=1,3,3') ;;
  4) rows+=('hybrid --degrees=2,2,2' 'hybrid --degrees=1,1,2' 'hybrid --degrees=2,4,4' 'zero3 --reshard_after_forward=2') ;;
esac
# Each program and each kind of step under all of `some`, or under two of them
# (tests/support/breadth.h).
some=(zero1 zero2 zero3 "${rows[-1]}")
turn=0
of_some() {  # <programs's name and arguments>
  local -a chosen=("${some[@]}")
  if [[ -z ${TESSERA_TEST_ALL:-} ]]; then
    chosen=("${some[turn % 2]}" "${some[2 + turn % 2]}")
    turn=$((turn + 1))
  fi
  same "$@" -- "${chosen[@]}"
}
same quickstart -- zero1 zero2 zero3
same lora -- zero2 zero3
same digits -- zero1 zero3
same gpt -- "${rows[@]}"
of_some gpt --accumulate=3
cp "$scratch/ddp" "$scratch/reduced_each"
of_some gpt --accumulate=3 --no_sync
of_some gpt --param_dtype=bfloat16
of_some gpt --ema=0.5
grep -q 'of the average' "$scratch/ddp"
# The strategy decides which rank transforms which matrix.
same gpt --optimizer=muon -- zero2 zero3
cp "$scratch/ddp" "$scratch/muon"

# The comparison can fail: another seed or weight decay trains another model.
differs() { # <what was printed> <arguments>
  local expected=$1
  shift
  gpt ddp "$@" >"$scratch/other"
  if diff -q "$expected" "$scratch/other" >/dev/null; then
    echo "equal_strategies.sh: $* changed nothing: nothing was compared" >&2
    exit 1
  fi
}
differs "$scratch/reduced_each" --accumulate=3 --seed=2
differs "$scratch/muon" --optimizer=muon --weight_decay=0.5
echo "all strategies are equal on $ranks rank(s)"
