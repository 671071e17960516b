#!/usr/bin/env bash
# Runs gpt and memory_compare with --device cuda over the fake GPU and NCCL and compares the results
# with the CPU's.
#
#   on_gpu.sh <folder of the programs> <folder of the fake libtorch_cuda.so> <fake libtessera_cuda.so> <fake NCCL> <text>
set -euo pipefail
bin=$1 text=$5
export TESSERA_CUDA_LIBRARIES=$2 TESSERA_CUDA_MODULE=$3 TESSERA_NCCL=$4 FAKE_CUDA_DEVICES=3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "on_gpu.sh: $*" >&2
  exit 1
}
run() { # <ranks> <program> <arguments>
  local ranks=$1
  shift
  if [[ $ranks -eq 1 ]]; then "$@"; else "$bin/tessera-run" --standalone --nproc-per-node "$ranks" -- "$@"; fi
}
gpt() { # <ranks> <file for losses> <arguments>
  local ranks=$1 losses=$2
  shift 2
  run "$ranks" "$bin/gpt" --data="$text" --layers=2 --heads=2 --width=36 --context=32 --batch=2 --steps=5 --warmup=2 \
    --eval_every=3 --eval_batches=4 --sample_bytes=16 --prompt=int --log_every=2 --losses_out="$losses" "$@" \
    >"$losses.out" 2>&1 || { cat "$losses.out" >&2; fail "gpt $* on $ranks rank(s)"; }
  [[ $(wc -l <"$losses") -eq 5 ]] || fail "gpt $* wrote $(wc -l <"$losses") losses, expected 5"
}
result() { grep -v -E 'tok/s|tokens per step' "$1.out"; } # hash, held-out losses and sample, not speed

same() { # <ranks> <arguments of the GPU's run> -- <arguments of both>
  local ranks=$1
  local -a on_gpu=()
  shift
  while [[ $1 != -- ]]; do on_gpu+=("$1"); shift; done
  shift
  gpt "$ranks" "$scratch/cpu" "$@"
  gpt "$ranks" "$scratch/gpu" "${on_gpu[@]}" "$@"
  diff "$scratch/cpu" "$scratch/gpu" || fail "losses of $* on $ranks rank(s) differ (above)"
  diff <(result "$scratch/cpu") <(result "$scratch/gpu") || fail "results of $* on $ranks rank(s) differ (above)"
}

for strategy in ddp zero3; do
  same 1 --device=cuda -- --strategy=$strategy
  same 3 --device=cuda --backend=shm -- --strategy=$strategy
done
same 4 --device=cuda --backend=shm -- --strategy=hybrid --degrees=2,2,4
same 1 --device=cuda:1 -- --accumulate=3 --param_dtype=bfloat16
FAKE_CUDA_DEVICES=1 same 3 --device=cuda --backend=shm -- --strategy=zero3 --accumulate=3 --no_sync
gpt 1 "$scratch/other" --device=cuda --seed=2
cmp -s "$scratch/gpu" "$scratch/other" && fail 'two seeds gave the same losses: nothing was compared'

refused() { # <what is said> <command>
  local said=$1
  shift
  if "$@" >"$scratch/out" 2>&1; then fail "$* was not refused"; fi
  grep -qF -- "$said" "$scratch/out" || { cat "$scratch/out" >&2; fail "$* did not say '$said'"; }
}
for program in gpt memory_compare; do
  refused "got 'tpu', expected cpu, cuda or cuda:<index>" "$bin/$program" --device=tpu
  refused '[cuda] library: got none, looked for libtorch_cuda.so in' \
    env TESSERA_CUDA_LIBRARIES="$scratch" "$bin/$program" --device=cuda
  refused 'got GPU 7, expected one of the 3 that this process sees' "$bin/$program" --device=cuda:7
done

compare() { # <ranks> <arguments>
  local ranks=$1
  shift
  run "$ranks" "$bin/memory_compare" --layers=3 --heads=4 --width=256 --vocabulary=500 --sequence=16 "$@" \
    >"$scratch/out" 2>&1 || { cat "$scratch/out" >&2; fail "memory_compare $* on $ranks rank(s)"; }
  grep -qF 'Persistent bytes are as predicted, to the byte, in every configuration.' "$scratch/out" ||
    { cat "$scratch/out" >&2; fail "memory_compare on $ranks rank(s): not as predicted"; }
  # The allocator rounds up blocks: by a fraction of a percent, always less than two.
  grep -qE 'at most [01]\.[0-9]+ % off total and control' "$scratch/out" ||
    { cat "$scratch/out" >&2; fail "memory_compare on $ranks rank(s): the allocator says something else"; }
}
compare 1 --device=cuda --configurations='ddp zero3'
compare 3 --device=cuda --backend=shm
for row in ddp zero1 zero2 zero3 zero3:1; do
  grep -qE "^(\[0\] )?$row +predicted" "$scratch/out" || { cat "$scratch/out" >&2; fail "no row $row"; }
done
echo 'gpt and memory_compare work on the fake GPU'
