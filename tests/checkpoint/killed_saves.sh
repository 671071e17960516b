#!/usr/bin/env bash
# Really kills a rank at a file call of a save: every remaining step is whole, and the run continues
# under another strategy and ends like the run that was not killed.
#   killed_saves.sh <folder of the programs> <kill_at_call library> <text>
# STRIDE: kills at every n-th call; 1: at every call.
set -euo pipefail
bin=$1 library=$2 text=$3
stride=${STRIDE:-5}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
  echo "killed_saves.sh: $*" >&2
  tail -n 20 "$scratch"/*.out >&2
  exit 1
}

gpt() { # <arguments>
  "$bin/tessera-run" --standalone --nproc-per-node 2 -- "$bin/gpt" --data="$text" --data_bytes=40000 --layers=1 --heads=1 \
    --width=16 --context=16 --batch=2 --steps=3 --warmup=1 --eval_batches=1 --sample_bytes=0 "$@"
}
hash_in() { grep -o 'parameters  *[0-9a-f]\{16\}' "$1" | grep -o '[0-9a-f]*$'; }

gpt --strategy=ddp >"$scratch/straight.out" 2>&1 || fail 'the run without a pause'
kills=0 went_on=0
for rank in 0 1; do
  for ((call = 1; ; call += stride)); do
    run=$scratch/run-$rank-$call
    if KILL_RANK=$rank KILL_AT=$call KILL_BELOW=$run LD_PRELOAD=$library gpt --strategy=zero3 --checkpoint="$run" \
      --save_every=1 --keep=1 >"$scratch/killed.out" 2>&1; then
      break  # it makes fewer calls than this
    fi
    grep -q "rank $rank .*SIGKILL" "$scratch/killed.out" || fail "rank $rank, call $call: it was not killed"
    kills=$((kills + 1))
    if compgen -G "$run/step-*[0-9]" | grep -qE '/step-[0-9]+$'; then
      went_on=$((went_on + 1))
      "$bin/tessera-checkpoint" verify "$run" >"$scratch/verify.out" 2>&1 ||
        fail "rank $rank, call $call: $(cat "$scratch/verify.out")"
    fi
    gpt --strategy=zero1 --checkpoint="$run" >"$scratch/resumed.out" 2>&1 || fail "rank $rank, call $call: it does not go on"
    [[ $(hash_in "$scratch/resumed.out") == "$(hash_in "$scratch/straight.out")" ]] ||
      fail "rank $rank, call $call: it ends with other parameters"
    [[ $(ls "$run") == $'lock\nstep-3' || $(ls "$run") =~ ^lock(.step-[123])+$ ]] || fail "rank $rank, call $call: $(ls "$run")"
    rm -rf "$run"
  done
done
[[ $kills -ge 60/$stride && $went_on -ge $kills/3 ]] || fail "only $kills kills, $went_on with a step"
echo "killed at $kills calls, $went_on of them with a step; each run went on and ended with the same parameters"
