#!/usr/bin/env bash
# Runs jobs over one MPI whose ranks communicate at random until one of them is killed, crashes,
# stops, exits, throws or aborts, as a seed determines (random_kill_test.cc). Every third job has
# two, three or four ranks with MPI alone; the others have two hosts of two ranks (TESSERA_HOST).
#
#   random_kills.sh <folder of the programs> <openmpi | mpich> <first seed> <number of seeds>
#
# After each job: it has ended within the time-out and the time that MPI and its launcher need, with
# an error unless nothing went wrong; every rank that got an error got that rank's, or the user's
# reason; if the rank stopped, exited, threw or aborted, every other rank got an error; no process
# is left.
# Exits with 77, "not run", if this MPI is not installed or its module was not built.
set -euo pipefail
bin=$1 abi=$2 first=$3 count=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

not_run() { echo "random_kills.sh: not run: $*"; exit 77; }
case $abi in
  openmpi)
    program=$(command -v mpirun.openmpi || true)
    [[ -n $program ]] || not_run "Open MPI is not installed"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_btl_base_warn_component_unused=0
    launch=("$program" --oversubscribe --bind-to none) ;;
  mpich)
    program=$(command -v mpiexec.hydra || true)
    [[ -n $program ]] || not_run "MPICH is not installed"
    launch=("$program") ;;
  *) not_run "got the MPI '$abi'" ;;
esac
[[ -f $bin/../lib/libtessera_mpi_$abi.so ]] || not_run "there is no module for $abi"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TESSERA_STORE
export TESSERA_MPI_MODULE=$bin/../lib/libtessera_mpi_$abi.so
export GTEST_BRIEF=1 OMP_NUM_THREADS=1

# A copy with a unique name, so that its processes can be found.
cp "$bin/mpi_test" "$scratch/random_kill_$$"
test=("$scratch/random_kill_$$" --gtest_filter='MpiRandomKill.*')
left() { pgrep -f "$scratch/random_kill_$$" || true; }

told=0
for ((seed = first; seed < first + count; ++seed)); do
  export TESSERA_TEST_MPI_KILL=$seed
  if ((seed % 3 == 0)); then
    ranks=$((2 + seed / 3 % 3))
    job=("${launch[@]}" -n $ranks env TESSERA_BACKEND=mpi "${test[@]}")
  else
    ranks=4
    job=("${launch[@]}" -n 2 env TESSERA_HOST=left "${test[@]}" : -n 2 env TESSERA_HOST=right
      "${test[@]}")
  fi
  code=0
  begin=$SECONDS
  timeout --kill-after=5 60 "${job[@]}" >"$scratch/out" 2>&1 || code=$?
  die() {
    echo "random_kills.sh: $abi, seed $seed, $ranks ranks: $* (exit code $code)" >&2
    cat "$scratch/out" >&2
    left | xargs -r kill -9
    exit 1
  }
  ((SECONDS - begin < 30)) || die "the job ended after $((SECONDS - begin)) s"
  victim=$(sed -n 's/.*seed [0-9]*: rank \([0-9]*\) of .*/\1/p' "$scratch/out")
  kind=$(sed -n 's/.*seed [0-9]*: rank [0-9]* of [0-9]*: \([a-z]*\) .*/\1/p' "$scratch/out")
  [[ -n $kind ]] || die "rank 0 said nothing"
  grep 'told:' "$scratch/out" >"$scratch/told" || true
  if [[ $kind == none ]]; then
    [[ $code == 0 && ! -s $scratch/told ]] || die "nothing went wrong, and the job failed"
  else
    [[ $code != 0 ]] || die "a job with a rank that failed ended well"
    if wrong=$(grep -v -e "rank $victim\b" -e "the user's reason" -e 'told: of its own' "$scratch/told"); then
      die "told of something else: $wrong"
    fi
    # If a rank dies, the launcher may end the others before they hear of it.
    if [[ $kind =~ ^(stop|exit|throw|abort)$ ]]; then
      others=$(grep -vc -e 'told: of its own' "$scratch/told" || true)
      # A rank that aborts gets its own reason.
      expected=$((ranks - 1))
      ((others >= expected)) || grep -q 'MPI_Abort ends them' "$scratch/out" ||
        die "$others ranks were told, expected $expected"
    fi
  fi
  for ((i = 0; i < 50; ++i)); do
    [[ -n $(left) ]] || break
    sleep 0.1
  done
  [[ -z $(left) ]] || die "processes are left: $(left)"
  told=$((told + $(wc -l <"$scratch/told")))
done
echo "$count jobs over $abi, $told ranks were told"
