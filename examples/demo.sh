#!/usr/bin/env bash
# What Tessera is for, in three minutes: the same training under three strategies, equal to the last digit and unequal in memory;
# then a byte-level GPT that learns C++ from LibTorch's headers on two ranks.
#
#   examples/demo.sh [folder of the programs]     after `make build`; `make demo` does both
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${1:-$here/build/release/bin}
ranks=${RANKS:-2}
steps=${STEPS:-900}
strategies=(ddp zero1 zero2)

# What tessera-run would choose, without its remark for each run.
threads=$(($(nproc) / ranks))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}

for program in tessera-run gpt; do
  if [[ ! -x $bin/$program ]]; then
    echo "demo: no program '$bin/$program'; run 'make demo', or name the folder they are in" >&2
    exit 1
  fi
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# gpt <arguments>: on all ranks; only rank 0 prints, so its prefix can go.
gpt() {
  "$bin/tessera-run" --standalone --nproc-per-node "$ranks" -- "$bin/gpt" "$@" | sed -u 's/^\[0\] //'
}

echo "== 1. One training, three strategies, $ranks ranks: the first five steps =="
# More parameters and less text than in part 2: memory is the point.
sizes=(--layers=6 --heads=8 --width=512 --context=64 --batch=2)
for strategy in "${strategies[@]}"; do
  gpt --strategy="$strategy" "${sizes[@]}" --steps=5 --lr=3e-4 --warmup=1 --eval_batches=4 \
    --sample_bytes=0 --memory \
    --losses_out="$scratch/$strategy.losses" >"$scratch/$strategy.out" || {
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
grep -E '^ddp on ' "$scratch/ddp.out" | sed 's/^ddp on/each on/'
grep -E '^parameters ' "$scratch/ddp.out"
echo 'Losses, gradient norms, held-out loss and parameters are equal, character for character.'

echo
grep '^memory, MiB' "$scratch/ddp.out"
for strategy in "${strategies[@]}"; do
  grep -E "^$strategy +rank +[0-9]+ +(predicted|measured)" "$scratch/$strategy.out"
done

echo
echo "== 2. Training on the C++ headers of LibTorch, zero2, $ranks ranks =="
gpt --strategy=zero2 --steps="$steps" --log_every=25
