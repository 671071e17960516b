#!/usr/bin/env bash
# Command lines of the benchmarks' programs: help, and refused arguments.
#
#   command_line.sh <folder of the programs>
set -euo pipefail
bin=$1
bench=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
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
  "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || code=$?
  [[ $code == "$expected" ]] || fail "$*: ended with $code, expected $expected"
}

refuses() { # <program> <arguments>: checks that it ends as misuse, with one line on stderr
  ends 64 "$@"
  [[ $(wc -l <"$scratch/err") == 1 ]] || fail "$*: not one line"
}

for program in "$bin"/{macro_train,macro_collectives,macro_optimizers,macro_muon,macro_sum_order,micro_bench} "$bench/run" "$bench/peers/setup.sh"; do
  name=$(basename "$program")
  ends 0 "$program" --help
  grep -q "^usage: .*$name" "$scratch/out" || fail "no usage of $name"
  grep -qE "^  .*$name" "$scratch/out" || fail "no example of $name"
  if [[ $name != setup.sh && $name != macro_collectives ]]; then  # these have no flags
    grep -qE 'default|--threads=1' "$scratch/out" || fail "no defaults of $name"
  fi
  refuses "$program" --no_such_flag
  refuses "$program" positional
done

export OMP_NUM_THREADS=1
ends 0 "$bin/macro_train" --model MLP --strategy local --threads 2 --steps 2
grep -q '"event":"steps"' "$scratch/out" || fail 'macro_train has trained nothing'
refuses "$bin/macro_train" --model MLP --strategy ddp --threads 2
refuses "$bin/macro_train" --threads 0

# Every update moves values as far as LibTorch's does, and an update of another algorithm does not.
refuses "$bin/macro_optimizers" --by=me
moved() { # <who> <algorithm>
  echo "run $2 5000 2" | "$bin/macro_optimizers" --by "$1" >"$scratch/out" 2>"$scratch/err" || fail "$2 by $1"
  sed -n 's/.*"moved":\([-+.e0-9]*\).*/\1/p' "$scratch/out"
}
close() { # <one> <other> [<how close>]
  awk -v a="$1" -v b="$2" -v by="${3:-1e-3}" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 <= (by * b) ^ 2) }'
}
for algorithm in adamw adam sgd lion adagrad rmsprop; do
  ours=$(moved tessera $algorithm)
  close "$ours" "$(moved libtorch $algorithm)" || fail "$algorithm: other updates than LibTorch's"
done
! close "$ours" "$(moved tessera adamw)" || fail 'any algorithm would do'
for algorithm in adamw lion; do  # 8-bit codes are rounded
  close "$(moved tessera8bit $algorithm)" "$(moved tessera $algorithm)" 0.05 || fail "$algorithm in 8 bits: other updates"
done
! "$bin/macro_optimizers" --by=tessera8bit <<<'run sgd 5000 2' &>"$scratch/out" || fail 'there is an 8-bit SGD'
[[ -n $(moved memory sgd) ]] || fail 'no pass over memory'

# Muon moves values equally under every strategy; one update moves them less.
refuses "$bin/macro_muon" --by=me
refuses "$bin/macro_muon" --threads=0
muon() { # <program and its flags>: prints how far a rank's values have moved
  "$@" </dev/null >"$scratch/out" 2>"$scratch/err" || fail "$*"
  sed -n 's/.*"moved":\([-+.e0-9]*\).*/\1/p' "$scratch/out" | head -n 1
}
two=$(muon "$bin/macro_muon" --updates 2)
zero2=$(muon "$bin/tessera-run" --standalone --nproc-per-node 2 -- "$bin/macro_muon" --strategy zero2 --updates 2)
close "$two" "$zero2" || fail 'zero2 moves values otherwise'
! close "$two" "$(muon "$bin/macro_muon" --updates 1)" || fail 'any number of updates would do'
for by in iterations products; do
  [[ -n $(muon "$bin/macro_muon" --by $by --updates 1) ]] || fail "no $by"
done

# One process trains the same as two ranks: equal mean losses and parameters.
losses() { # <ranks>: prints the mean over ranks, one line per step
  sed -n 's/.*"loss":\[\([^]]*\)\].*/\1/p' "$scratch/out" | tr ',' ' ' |
    awk -v ranks="$1" '{ for (i = 1; i <= NF; i++) sum[i] += $i }
      END { for (i = 1; i <= NF; i++) printf "%.5f\n", sum[i] / ranks; if (NR != ranks) exit 1 }'
}
for model in MLP S; do
  train=("$bin/macro_train" --model $model --text "$bench/peers/strategies.py" --steps 3)
  ends 0 "${train[@]}" --strategy local --threads 2
  losses 1 >"$scratch/one"
  for strategy in ddp zero1-apart zero2-apart zero3-apart; do
    ends 0 "$bin/tessera-run" --standalone --nproc-per-node 2 -- "${train[@]}" --strategy $strategy
    losses 2 >"$scratch/two"
    [[ $(wc -l <"$scratch/two") == 3 ]] || fail "$model, $strategy: no three losses"
    diff "$scratch/one" "$scratch/two" >&2 || fail "$model, $strategy: other losses (above)"
  done
done
ends 1 "$bin/macro_train" --model MLP --strategy ddp-apart --steps 1
grep -q "zero1-apart" "$scratch/err" || fail 'the refusal lists no strategies'
echo 'command lines are as they should be'
