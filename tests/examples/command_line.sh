#!/usr/bin/env bash
# Command lines of all programs: help, refused values, and output that cannot be written.
#
#   command_line.sh <folder of the programs> <text>
set -euo pipefail
bin=$1
text=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { # <what is wrong>
  echo "command_line.sh: $*" >&2
  cat "$scratch/out" "$scratch/err" >&2
  exit 1
}

# ends <code> <program> <arguments>: checks the exit code and stores both output streams.
ends() {
  local expected=$1 code=0
  shift
  "$bin/$1" "${@:2}" >"$scratch/out" 2>"$scratch/err" || code=$?
  [[ $code == "$expected" ]] || fail "$*: ended with $code, expected $expected"
}

out_has() { grep -qF -- "$1" "$scratch/out" || fail "no '$1' in the output of $program"; }
err_has() { grep -qF -- "$1" "$scratch/err" || fail "no '$1' on stderr of $program"; }
err_is_one_line() { [[ $(wc -l <"$scratch/err") == 1 ]] || fail "$program: not one line"; }

for program in gpt quickstart digits digits_ddp digits_by_hand digits_uneven digits_threads launch lora memory_compare all_reduce tessera-run; do
  ends 0 $program --help
  grep -qi "^usage: $program" "$scratch/out" || fail "no usage of $program"
  grep -q "^  .*$program" "$scratch/out" || fail "no example of $program"
done

for program in gpt quickstart digits digits_ddp digits_by_hand digits_uneven digits_threads launch lora memory_compare all_reduce tessera-run tessera-checkpoint; do
  ends 0 $program --version
  out_has "$program, of Tessera "
done

for program in gpt quickstart digits digits_ddp digits_by_hand digits_uneven digits_threads launch lora memory_compare all_reduce; do
  ends 64 $program --no_such_flag
  err_has 'no flag is called --no_such_flag'
  err_is_one_line
  ends 64 $program positional
  err_has "got 'positional', expected flags only"
  err_is_one_line
done

# Only some of the launch variables are set (case 25 of docs/testing.md).
for program in gpt quickstart lora memory_compare all_reduce; do
  RANK=0 ends 64 $program
  err_has '[environment] WORLD_SIZE: not set, although RANK is'
  err_is_one_line
  WORLD_SIZE=2 ends 64 $program
  err_has '[environment] RANK: not set, although WORLD_SIZE is'
  err_has '[environment] TESSERA_STORE, MASTER_ADDR, MASTER_PORT: not set, expected one place where 2'
done

# Fields of Options without a flag of their own.
program=gpt
ends 64 gpt --options=trace=true,offload=everything
err_has "[options] offload: got 'everything', expected none, optimizer, parameters"
ends 64 gpt --options=speed=high
err_has "[options] got the name 'speed', expected a field of Options"
ends 64 gpt --options=units_in_reduction=0
err_has '[options] units_in_reduction: got 0; allowed 1 to 1024'

program=quickstart
ends 0 $program --help
out_has '--strategy=ddp'
out_has '--epochs=30'
ends 64 $program --epochs=-1
ends 64 $program --strategy
err_has '--strategy: got no value'
ends 64 $program --strategy=zero4
err_is_one_line

program=memory_compare
for flag in layers=1000000000 batch=72057594037927936 sequence=9223372036854775807 steps=-1; do
  ends 64 $program --$flag
  err_has "--${flag%=*}: got ${flag#*=}, expected 1 to "
  err_is_one_line
done

for program in gpt memory_compare; do
  ends 64 $program --optimizer=adamax
  err_has "--optimizer: got 'adamax', expected adamw, adam, sgd, lion, muon or adamw8bit"
  err_is_one_line
  ends 0 $program --help
  out_has '--optimizer=adamw'
done

program=gpt
tiny=(--layers=1 --heads=1 --width=8 --context=8 --batch=1 --steps=2 --eval_batches=1
  --sample_bytes=0 --data="$text")
ends 0 $program "${tiny[@]}"
ends 0 $program "${tiny[@]}" --memory --nomemory --log_every 1  # three ways to give a value
out_has 'step 2/2'
# - and _ mean the same in a name, also after "no".
ends 0 $program "${tiny[@]}" --log-every 1 --eval-batches=1 --accumulate=2 --no-sync --noloss-scale
out_has 'step 2/2'
ends 64 $program "${tiny[@]}" --save-every=often
err_has "--save_every: got 'often'"
ends 64 $program --no-such-flag
err_has 'no flag is called --no-such-flag'
ends 64 $program "${tiny[@]}" --batch=72057594037927936
ends 64 $program "${tiny[@]}" --context=9223372036854775807
ends 64 $program "${tiny[@]}" --layers=1000000000
err_has '--layers: got 1000000000, expected 1 to 10000'
ends 0 $program "${tiny[@]}"
! grep -q 'of the average' "$scratch/out" || fail 'an average that nobody asked for'
ends 0 $program "${tiny[@]}" --ema=0.5
grep -q '^of the average   [0-9.]* nats per byte$' "$scratch/out" || fail 'no loss of the average'
# Each algorithm trains different values, at its default rate or at a given one.
ends 0 $program --help
out_has 'highest learning rate; default: 0.003 under adamw,'
trained() { # <arguments>: the hash of the parameters
  ends 0 $program "${tiny[@]}" --warmup=0 --log_every=1 "$@"
  sed -n 's/^parameters *//p' "$scratch/out"
}
hashes=$(for optimizer in adamw adam sgd lion muon adamw8bit; do trained --optimizer=$optimizer; done)
[[ $(sort -u <<<"$hashes" | wc -l) == 6 && $(wc -w <<<"$hashes") == 6 ]] || fail "six algorithms: $hashes"
[[ $(trained) == "$(head -n 1 <<<"$hashes")" ]] || fail 'the default is not adamw'
for rate in 0.25 0.0125; do
  trained --optimizer=sgd --lr=$rate >/dev/null
  out_has "$(printf 'lr %.2e' $rate)"
done
trained --optimizer=lion >/dev/null
out_has 'lr 1.00e-03'

# A checkpoint of one algorithm cannot be loaded by another.
ends 0 $program "${tiny[@]}" --checkpoint="$scratch/adamw"
ends 1 $program "${tiny[@]}" --checkpoint="$scratch/adamw" --steps=3 --optimizer=lion
err_has 'another algorithm saved the state'
ends 0 $program "${tiny[@]}" --checkpoint="$scratch/adamw" --steps=3
ends 0 $program "${tiny[@]}" --checkpoint="$scratch/lion" --optimizer=lion
ends 1 $program "${tiny[@]}" --checkpoint="$scratch/lion" --steps=3  # lacks most of the states
err_has 'another algorithm saved the state'

for decay in 1 -0.5 nan; do
  ends 64 $program "${tiny[@]}" --ema=$decay
  err_has 'average.decay: got '
  err_is_one_line
done
ends 64 $program "${tiny[@]}" --degrees=1,2
err_has '--degrees: '
err_is_one_line
# What only the ranks together can find out is printed once per rank; here, a text that nobody can
# read.
mkdir "$scratch/unreadable"
for i in {1..40}; do ln -s /proc/self/mem "$scratch/unreadable/$i"; done
# The launcher ends the ranks that have not printed it when the first rank ends, perhaps in the
# middle of a line.
said_by_ranks() { # <lines of a rank> <arguments>
  local rank lines
  ends 1 tessera-run --nproc-per-node 3 -- "$bin/gpt" "${tiny[@]}" "${@:2}"
  for rank in 0 1 2; do
    lines=$(grep -c "^\[$rank\] " "$scratch/err" || true)
    ((lines <= $1)) || fail "rank $rank: $lines lines, not $1"
    if ((lines == $1)); then said_it=$rank; fi
  done
}
said_it=none
said_by_ranks 1 --strategy=hybrid --degrees=2,2,2
err_has "[$said_it] [parallelize] all ranks: [options] degrees: got 2,2,2 on a world of 3"
said_it=none
said_by_ranks 12 --data="$scratch/unreadable"
err_has "[$said_it]   and 30 more"
for flag in trace losses_out report; do  # refused before the first step
  ends 64 $program "${tiny[@]}" --$flag=/no/such/folder/file
  err_has "--$flag: got '/no/such/folder/file', which cannot be written (No such file or directory)"
  [[ ! -s $scratch/out ]] || fail "$program trained before it looked at --$flag"
done
ends 0 $program "${tiny[@]}" --trace="$scratch/trace.json" --losses_out="$scratch/losses" --report="$scratch/report"
python3 -c 'import json, sys; report = json.load(open(sys.argv[1])); assert report["steps"] == 2 and report["units"]' \
  "$scratch/report" || fail 'no report'
[[ $(wc -l <"$scratch/losses") == 2 && -s $scratch/trace.json ]] || fail 'no trace or no losses'
[[ $(find "$scratch" -name '*.??????' ! -name 'losses' ! -name '*.json' | wc -l) == 0 ]] ||
  fail 'something is left beside the trace'

code=0
"$bin/quickstart" --epochs=1 >&- 2>"$scratch/err" || code=$?
[[ $code == 1 ]] || fail "quickstart without standard output: ended with $code"
err_has "quickstart: standard output was not written whole"

if [[ -c /dev/full ]]; then
  code=0
  "$bin/tessera-run" --help >/dev/full 2>"$scratch/err" || code=$?
  [[ $code == 71 ]] || fail "tessera-run --help >/dev/full: ended with $code"
  err_has 'tessera-run: cannot write to stdout: No space left on device'
  ends 1 $program "${tiny[@]}" --losses_out=/dev/full
  err_has '--losses_out: /dev/full does not take the losses of step 1 (No space left on device)'
  ends 1 $program "${tiny[@]}" --report=/dev/full
  err_has "--report: '/dev/full' does not take the report"
  for program in gpt quickstart; do
    arguments=(--epochs=1)
    [[ $program == quickstart ]] || arguments=("${tiny[@]}")
    code=0
    "$bin/$program" "${arguments[@]}" >/dev/full 2>"$scratch/err" || code=$?
    [[ $code == 1 ]] || fail "$program >/dev/full: ended with $code"
    err_has "$program: standard output was not written whole"
  done
fi
echo 'command lines are as they should be'
