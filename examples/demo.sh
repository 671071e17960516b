#!/usr/bin/env bash
# Shows what Tessera is for:
#  - the small program of examples/quickstart under every strategy;
#  - the same training under every strategy, equal to the last digit;
#  - a byte-level GPT that learns C++ from LibTorch's headers on two ranks, its parameters split;
#  - the memory that each strategy needs;
#  - a run that is killed and resumed.
#
#   examples/demo.sh [folder of the programs]          after `make build`; `make demo` does both
#   examples/demo.sh --first <folder of the programs>  examples/quickstart alone, which is built first
#
# STEPS: number of training steps. CHART: path of the chart.
set -euo pipefail
unset CDPATH RANK WORLD_SIZE  # with the last two tessera-run would refuse to start a job of its own

first=
if [[ ${1:-} == --first ]]; then
  first=yes
  shift
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${1:-$here/build/release/bin}
steps=${STEPS:-900}
chart=${CHART:-$here/build/memory.svg}
ranks=2
strategies=(ddp zero1 zero2 zero3)

programs=(tessera-run quickstart)
[[ -n $first ]] || programs+=(gpt memory_compare)
for program in "${programs[@]}"; do
  if [[ ! -x $bin/$program ]]; then
    echo "demo: no program '$bin/$program'; run 'make demo', or name the folder they are in" >&2
    exit 1
  fi
done
# Asks tessera-run once for the number of threads that it chooses, and sets it, so that tessera-run
# does not print a remark on it in each run.
: "${OMP_NUM_THREADS:=$("$bin/tessera-run" --standalone --nproc-per-node "$ranks" -- \
  sh -c 'echo "$OMP_NUM_THREADS"' 2>/dev/null | sed -n 's/^\[0\] //p')}"
export OMP_NUM_THREADS
scratch=$(mktemp -d)
trap '[[ -z $(jobs -p) ]] || kill $(jobs -p); rm -rf "$scratch"' EXIT

# start <ranks> <program> <arguments>: replaces the calling subshell by the program's launcher.
start() {
  local ranks=$1 program=$2
  shift 2
  exec "$bin/tessera-run" --standalone --nproc-per-node "$ranks" -- "$bin/$program" "$@"
}
# on <ranks> <program> <arguments>: runs the program. Only rank 0 prints, so the prefix [0] is removed.
on() { (start "$@") | sed -u 's/^\[0\] //'; }

# The output of examples/quickstart under each strategy.
if [[ -n $first ]]; then
  echo "== A first training, $ranks ranks: a classifier of points on a spiral (examples/quickstart/main.cc) =="
  for strategy in "${strategies[@]}"; do
    on $ranks quickstart --strategy="$strategy" | tee "$scratch/$strategy.out" | sed "s/^/$strategy: /"
  done
  for strategy in "${strategies[@]}"; do
    if ! diff "$scratch/${strategies[0]}.out" "$scratch/$strategy.out"; then
      echo "demo: $strategy differs from ${strategies[0]} (above)" >&2
      exit 1
    fi
  done
  echo 'What is sharded changes where the state lives, and not a bit of what is trained.'
  exit
fi

echo "== 1. One training, four strategies, $ranks ranks: the first five steps =="
for strategy in "${strategies[@]}"; do
  on $ranks gpt --strategy="$strategy" --layers=4 --width=256 --context=64 --batch=2 --steps=5 --lr=3e-4 --warmup=1 --eval_batches=4 \
    --sample_bytes=0 --losses_out="$scratch/$strategy.losses" >"$scratch/$strategy.out" || {
    cat "$scratch/$strategy.out"
    exit 1
  }
done

echo
echo 'loss, nats per byte (all digits)'
printf '%-6s' step
printf '%-24s' "${strategies[@]}"
echo
for step in 1 2 3 4 5; do
  printf '%-6s' "$step"
  for strategy in "${strategies[@]}"; do
    printf '%-24s' "$(awk -v step="$step" '$1 == step { print $2 }' "$scratch/$strategy.losses")"
  done
  echo
done

# Everything that training computes: losses, gradient norms, the held-out loss and the hash of the parameters.
for strategy in "${strategies[@]}"; do
  {
    cat "$scratch/$strategy.losses"
    grep -E '^(held-out loss|parameters) ' "$scratch/$strategy.out"
  } >"$scratch/$strategy.result"
  if [[ $(wc -l <"$scratch/$strategy.result") -ne 7 ]]; then
    echo "demo: $strategy printed no complete result:" >&2
    cat "$scratch/$strategy.out" >&2
    exit 1
  fi
  if ! diff "$scratch/${strategies[0]}.result" "$scratch/$strategy.result"; then
    echo "demo: $strategy differs from ${strategies[0]} (above)" >&2
    exit 1
  fi
done
echo
grep -E '^parameters ' "$scratch/ddp.out"
echo 'Losses, gradient norms, held-out loss and parameters are equal, character for character.'

echo
echo "== 2. Training on the C++ headers of LibTorch, zero3, $ranks ranks =="
on $ranks gpt --strategy=zero3 --steps="$steps" --log_every=25 --memory

echo
echo "== 3. Memory of every strategy on four ranks =="
mkdir -p "$(dirname "$chart")"
OMP_NUM_THREADS=1 on 4 memory_compare --svg="$chart"

echo
echo "== 4. Killed in the middle, $ranks ranks: goes on under another strategy =="
run=$scratch/run
training=(--layers=4 --width=192 --context=64 --batch=4 --steps=60 --warmup=2 --eval_batches=4 --sample_bytes=0 --log_every=20)
# progress <strategy>: prints the lines of progress and the hash of the parameters.
progress() { grep -E '^(step|goes on|parameters)' | sed "s/^/$1: /"; }
# train <strategy> <arguments>: trains and prints the progress.
train() {
  local strategy=$1
  shift
  on $ranks gpt --strategy="$strategy" "${training[@]}" "$@" | tee "$scratch/$strategy.out" | progress "$strategy"
}
train ddp
echo "-- SIGKILL to a run under zero3, once step 20 is saved --"
(start $ranks gpt --strategy=zero3 "${training[@]}" --checkpoint="$run" --save_every=5) \
  >"$scratch/zero3.out" 2>"$scratch/killed.err" &
job=$!
until [[ -d $run/step-20 ]]; do
  if ! kill -0 $job 2>/dev/null; then
    cat "$scratch/killed.err" >&2
    echo 'demo: the run ended before it was killed (above)' >&2
    exit 1
  fi
  sleep 0.05
done
pkill -KILL -P $job  # its ranks
wait $job || true
sed 's/^\[0\] //' "$scratch/zero3.out" | progress zero3
train zero1 --checkpoint="$run"
hash_of() { sed -n 's/^parameters *//p' "$scratch/$1.out"; }
if [[ -z $(hash_of ddp) || $(hash_of ddp) != "$(hash_of zero1)" ]]; then
  echo 'demo: the run that was killed ends with other parameters (above)' >&2
  exit 1
fi
echo 'The run that was killed and the one that was not end with the same parameters, bit for bit.'
