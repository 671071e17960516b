#!/usr/bin/env bash
# Trains a tiny gpt under rows of the table of strategies over MPI and compares its parameter hash
# and its losses character by character (case 35 of docs/testing.md).
#
#   strategies.sh <folder of the programs> <openmpi | mpich> <one | two> <text> <ranks>...
#
# one: on this host; all are equal to ddp under tessera-run. two: on two hosts that are namespaces
# of this machine (tools/two-hosts), half of the ranks on each; all are equal to ddp there, because
# sums over hosts may have another order. Exits with 77, "not run", if that is impossible.
set -euo pipefail
bin=$1 abi=$2 hosts=$3 text=$4
worlds=("${@:5}")
two_hosts=$(dirname "${BASH_SOURCE[0]}")/../../tools/two-hosts
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

not_run() { echo "strategies.sh: not run: $*"; exit 77; }
[[ -f $bin/../lib/libtessera_mpi_$abi.so ]] || not_run "Tessera's module for $abi was not built"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TESSERA_STORE
export OMP_NUM_THREADS=1

# over_mpi <ranks> <program> <arguments>...
over_mpi() {
  local ranks=$1
  shift
  case $hosts-$abi in
    two-*) "$two_hosts" --launcher "$abi" --ranks-per-host $((ranks / 2)) -- "$@" ;;
    one-openmpi)
      OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TESSERA_BACKEND=mpi \
        mpirun.openmpi --oversubscribe --bind-to none -n "$ranks" "$@" ;;
    one-mpich) TESSERA_BACKEND=mpi mpiexec.hydra -n "$ranks" "$@" ;;
  esac
}
under_tessera_run() {
  local ranks=$1
  shift
  "$bin/tessera-run" --standalone --nproc-per-node "$ranks" -- "$@"
}

# gpt <over_mpi | under_tessera_run> <ranks> <row of the table> <further arguments>...
gpt() {
  local how=$1 ranks=$2 code=0
  local -a row=($3)
  shift 3
  "$how" "$ranks" "$bin/gpt" --strategy="${row[@]}" --data="$text" --layers=3 --heads=2 --width=36 \
    --context=32 --batch=2 --steps=4 --warmup=2 --eval_every=2 --eval_batches=4 --sample_bytes=16 \
    --prompt=int --losses_out="$scratch/losses" "$@" >"$scratch/all" 2>"$scratch/errors" || code=$?
  if ((code != 0)); then
    cat "$scratch/all" "$scratch/errors" >&2
    return $code
  fi
  [[ $(wc -l <"$scratch/losses") -eq 4 ]]
  sed 's/^\[[0-9]*\] //' "$scratch/all" | grep -E '^parameters  *[0-9a-f]{16}'
  cat "$scratch/losses"
}

# If the world cannot be created, print the reason.
probe=0
over_mpi "${worlds[0]}" true >"$scratch/all" 2>&1 || probe=$?
((probe != 77 && probe != 127)) || not_run "$(tail -n 1 "$scratch/all")"

for ranks in "${worlds[@]}"; do
  rows=(ddp zero1 zero2 zero3)
  case $ranks in
    2) rows+=('zero3 --reshard_after_forward=1') ;;
    3) rows+=('hybrid --degrees=1,3,3') ;;
    4) rows+=('hybrid --degrees=2,2,2' 'hybrid --degrees=1,1,2') ;;
  esac
  for arguments in '' '--accumulate=3 --no_sync'; do
    if [[ $hosts == one ]]; then
      gpt under_tessera_run "$ranks" ddp $arguments >"$scratch/expected"
    else
      gpt over_mpi "$ranks" ddp $arguments >"$scratch/expected"
    fi
    # Then nothing new is sent, so one row is enough.
    [[ -z $arguments ]] || rows=(zero3)
    for row in "${rows[@]}"; do
      gpt over_mpi "$ranks" "$row" $arguments >"$scratch/got"
      diff "$scratch/expected" "$scratch/got" || {
        echo "strategies.sh: $row $arguments over $abi on $ranks ranks differs (above)" >&2
        exit 1
      }
    done
  done
done

# The comparison can fail: another seed trains another model.
gpt over_mpi "${worlds[-1]}" zero3 $arguments --seed=2 >"$scratch/got"
if diff -q "$scratch/expected" "$scratch/got" >/dev/null; then
  echo "strategies.sh: another seed changed nothing: nothing was compared" >&2
  exit 1
fi
echo "all strategies are equal over $abi on ${worlds[*]} rank(s), $hosts host(s)"
