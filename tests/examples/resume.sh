#!/usr/bin/env bash
# A killed run continues under another strategy and ends like a run that was not killed.
#   resume.sh <folder of the programs> <text>
set -euo pipefail
bin=$1 text=$2
steps=120  # enough that a run is killed long before its end, even if this shell is slow
scratch=$(mktemp -d)
trap 'pkill -KILL -f -- "--checkpoint=$scratch" || true; rm -rf "$scratch"' EXIT
fail() {
  echo "resume.sh: $*" >&2
  tail -n 40 "$scratch"/*.out >&2
  exit 1
}

gpt() { # <ranks> <arguments>
  local ranks=$1
  shift
  "$bin/tessera-run" --standalone --nproc-per-node "$ranks" -- "$bin/gpt" --data="$text" --layers=4 --heads=4 \
    --width=96 --context=96 --batch=4 --steps=$steps --warmup=2 --eval_batches=2 --sample_bytes=0 --keep=0 "$@"
}
hash_in() { grep -o 'parameters  *[0-9a-f]\{16\}' "$1" | grep -o '[0-9a-f]*$'; }
last_step() { ls "$1" | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }
wait_for_step() { # <directory> <step> <job>
  until [[ -d $1/step-$2 ]]; do
    kill -0 "$3" 2>/dev/null || fail "the run ended before step $2 was saved"
  done
}
same_as_straight() { [[ $(hash_in "$1") == "$(hash_in "$scratch/straight.out")" ]]; }

gpt 2 --strategy=ddp --losses_out="$scratch/straight.losses" >"$scratch/straight.out" || fail 'the run without a pause'

# Killed once five steps are saved; by then more may be saved, and one may be in progress.
gpt 2 --strategy=zero3 --checkpoint="$scratch/run" --save_every=1 --losses_out="$scratch/losses" \
  >"$scratch/killed.out" 2>&1 &
job=$!
wait_for_step "$scratch/run" 5 $job
pkill -KILL -f -- "--checkpoint=$scratch/run" || fail 'there was nothing to kill'
if wait $job; then fail 'a killed run ended with code 0'; fi
killed_after=$(last_step "$scratch/run")
[[ $killed_after -ge 5 && $killed_after -lt $steps ]] || fail "killed after step $killed_after"
cp -r "$scratch/run" "$scratch/older"

gpt 2 --strategy=zero1 --checkpoint="$scratch/run" --losses_out="$scratch/losses" >"$scratch/resumed.out" ||
  fail 'the run that goes on'
grep -q "goes on from $scratch/run/step-$killed_after, saved by 2 ranks" "$scratch/resumed.out" ||
  fail "nothing of step $killed_after"
same_as_straight "$scratch/resumed.out" || fail 'the run that goes on ends with other parameters'
[[ $(last_step "$scratch/run") -eq $steps ]] || fail 'no checkpoint at the end'
# Steps lost with the run appear in its losses twice, with the same values.
sort -un "$scratch/losses" | cmp - "$scratch/straight.losses" || fail 'other losses'

# A finished run has nothing left to do and prints the same result.
gpt 3 --strategy=zero2 --checkpoint="$scratch/run" >"$scratch/finished.out" || fail 'the finished run'
same_as_straight "$scratch/finished.out" || fail 'the finished run has other parameters'

touch "$scratch/stopped.out"
# Resumes from a given step; later checkpoints are set aside. SIGTERM saves and ends the run without
# an error.
gpt 2 --strategy=zero2 --checkpoint="$scratch/older" --resume=3 --save_every=0 --steps=100000 \
  >"$scratch/stopped.out" 2>&1 &
job=$!
until grep -q 'step ' "$scratch/stopped.out"; do
  kill -0 $job 2>/dev/null || fail 'the run ended before it was to'
done
pkill -TERM -f -- "^$bin/tessera-run .*--checkpoint=$scratch/older" || fail 'there was nothing to stop'
code=0
wait $job || code=$?
[[ $code -eq 0 || $code -eq 143 ]] || fail "SIGTERM: ended with $code"
stopped_after=$(sed -n 's/.*stopped and saved after step //p' "$scratch/stopped.out")
[[ -n $stopped_after && $(last_step "$scratch/older") -eq $stopped_after ]] || fail "SIGTERM: nothing was saved"
ls "$scratch/older" | grep -q "^step-$killed_after[.]replaced-" || fail 'what came after step 3 is not set aside'

# The comparison can fail: one step less gives another result.
gpt 2 --strategy=ddp --steps=$((steps - 1)) >"$scratch/shorter.out" || fail 'a shorter run'
if same_as_straight "$scratch/shorter.out"; then fail 'nothing was compared'; fi
echo "killed after step $killed_after, went on, and ended with the same parameters"
