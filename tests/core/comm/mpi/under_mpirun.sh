#!/usr/bin/env bash
# Runs ranks under the mpirun of one MPI: the whole API of a group in worlds of 3 (1 to 4) and on
# two hosts of two ranks, jobs whose ranks fail, and an application that uses MPI itself.
#
#   under_mpirun.sh <folder of the programs> <openmpi | mpich>
#
# Exits with 77, "not run", if this MPI is not installed or its module was not built.
set -euo pipefail
bin=$1 abi=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

not_run() { echo "under_mpirun.sh: not run: $*"; exit 77; }
die() { echo "under_mpirun.sh: $*" >&2; cat "$scratch/out" >&2; exit 1; }

case $abi in
  openmpi)
    program=$(command -v mpirun.openmpi || true)
    [[ -n $program ]] || not_run "Open MPI is not installed"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_btl_base_warn_component_unused=0
    launch=("$program" --oversubscribe --bind-to none)
    was_killed="process rank 1 with PID [0-9]* on node .* exited on signal 9" ;;
  mpich)
    program=$(command -v mpiexec.hydra || true)
    [[ -n $program ]] || not_run "MPICH is not installed"
    launch=("$program")
    was_killed="EXIT STRING: Killed (signal 9)" ;;
  *) die "got the MPI '$abi'" ;;
esac
[[ -f $bin/../lib/libtessera_mpi_$abi.so ]] || not_run "there is no module for $abi"

unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TESSERA_STORE
export TESSERA_TEST_MPI_JOB=1 GTEST_BRIEF=1 OMP_NUM_THREADS=1

# run <limit in seconds> <launcher> <arguments>...: returns the launcher's code. A job that does not
# end must not pass as one that fails: its shell is killed and writes no code. timeout's own code
# would be ambiguous, as 137 is also that of a launcher whose rank was killed.
run() {
  local limit=$1
  shift
  rm -f "$scratch/code"
  # shellcheck disable=SC2016
  timeout --kill-after=5 "$limit" bash -c 'code=0; "$@" || code=$?; echo $code >"$0"' \
    "$scratch/code" "$@" >"$scratch/out" 2>&1 || true
  [[ -s $scratch/code ]] || die "had not ended after $limit s: $*:"
  return "$(cat "$scratch/code")"
}
# job <ranks> <limit in seconds> <program> <arguments>...
job() {
  local ranks=$1 limit=$2
  shift 2
  run "$limit" "${launch[@]}" -n "$ranks" "$@"
}
says() { grep -q -- "$1" "$scratch/out" || die "expected '$1' in:"; }

# The control: a hanging job is noticed, whatever is expected of it.
if (! job 2 1 sleep 1000) 2>"$scratch/control" || ! grep -q 'had not ended' "$scratch/control"; then
  die "a job that does not end went by:"
fi

# With all rows (tests/support/breadth.h) more repetitions run.
takes_all_rows() { [[ -n ${TESSERA_TEST_ALL:-} ]]; }
# worlds <ranks>...: all of these, or the odd one.
worlds() { takes_all_rows && echo "$@" || echo 3; }
# Strategies to compare: all, or the one that splits parameters.
strategies() { takes_all_rows && echo ddp zero1 zero2 zero3 || echo zero3; }
# times <n>: repetitions of something that may fail by chance.
times() { takes_all_rows && echo "$1" || echo $((($1 + 4) / 5)); }

for ranks in $(worlds 1 2 3 4); do
  job $ranks 240 "$bin/mpi_test" --gtest_filter='MpiJob.*' || die "$ranks ranks failed:"
  says "PASSED"
done

# A killed rank ends the job, and the launcher says so. A stopped rank is named by every other rank,
# and the job ends.
! job 3 60 "$bin/mpi_test" --gtest_filter='MpiScenario.KilledRank' || die "a killed rank went by:"
says "$was_killed"
begin=$SECONDS
! job 3 60 "$bin/mpi_test" --gtest_filter='MpiScenario.StoppedRank' || die "a stopped rank went by:"
says "all_reduce #[0-9]* 'stopped' on group 'world', rank 0: timed out: rank [02] waited 2000 ms for rank 1 (pid"
says "rank 2: timed out: rank [02] waited 2000 ms for rank 1 (pid"
((SECONDS - begin < 30)) || die "the job with a stopped rank ended after $((SECONDS - begin)) s:"

# A rank that waits long reports for whom, and the state of that process; ranks that fail dump their
# calls.
job 3 60 "$bin/mpi_test" --gtest_filter='MpiScenario.LateRank' || die "a late rank failed:"
says "barrier 'late' #[0-9]* on group 'world': rank 0 has waited [0-9]* ms for rank 1 (pid [0-9]* on .*), which runs (.*), last seen in #[0-9]* barrier 'all here'"
mkdir "$scratch/flights"
! job 3 60 env TESSERA_FLIGHT_DUMP="$scratch/flights" "$bin/mpi_test" \
  --gtest_filter='MpiScenario.StoppedRank' || die "a stopped rank went by:"
says "for rank 1 (pid [0-9]* on .*), which is stopped (SIGSTOP or a debugger), last seen in #[0-9]* all_gather"
cat "$scratch"/flights/flight-mpi-rank-*.txt >"$scratch/out" || die "no flights:"
says "cause: .*all_reduce #[0-9]* 'stopped' on group 'world', rank [02]: timed out"
says "^  #[0-9]* all_reduce SUM float32.100. 'stopped' on group 'world', began .* not over"

# If a rank never begins to use MPI, the others time out.
begin=$SECONDS
! run 60 "${launch[@]}" -n 1 "$bin/mpi_test" --gtest_filter='MpiStart.*' : -n 1 sleep 1000 : \
  -n 1 "$bin/mpi_test" --gtest_filter='MpiStart.*' || die "a rank that never comes went by:"
says "timed out: waited 3000 ms for MPI_Init_thread, which waits for ranks that have not called it: "
((SECONDS - begin < 30)) || die "the job without a rank ended after $((SECONDS - begin)) s:"

# The same for a rank whose memory the others read.
! job 3 60 "$bin/mpi_test" --gtest_filter='MpiScenario.KilledOwner' || die "a killed owner went by:"
says "$was_killed"
begin=$SECONDS
! job 3 60 "$bin/mpi_test" --gtest_filter='MpiScenario.StoppedOwner' || die "a stopped owner went by:"
says "read 'unit' on group 'world', rank [02]: timed out: rank [02] waited 2000 ms for rank 1 (pid"
((SECONDS - begin < 30)) || die "the job with a stopped owner ended after $((SECONDS - begin)) s:"

# Ranks of an aborted world end in order if all of them check for failure; if one does not, the
# others end it. Each process has two worlds, so MPI is initialised before the second.
for ranks in 2 3; do
  job $ranks 60 "$bin/mpi_test" --gtest_filter='MpiScenario.AbortedWorld' || die "an aborted world:"
done
! job 3 60 "$bin/mpi_test" --gtest_filter='MpiScenario.AbortedWhileARankSleeps' ||
  die "an aborted world with a rank that sleeps went by:"
says "MPI_Abort ends them"

# With an MPI other than the launcher's, every process would be alone.
other=mpich
[[ $abi == openmpi ]] || other=openmpi
if [[ -f $bin/../lib/libtessera_mpi_$other.so ]]; then
  ! job 2 60 env TESSERA_MPI=$other "$bin/mpi_test" --gtest_filter='MpiJob.Moves' ||
    die "ranks that are alone went by:"
  says "got 1 ranks from .*, expected the 2 that the environment names"
fi

# A variable left by an outer launcher of the other MPI has no effect.
leftover=PMI_FD=9
[[ $abi == openmpi ]] || leftover=PMIX_RANK=0
job 2 60 env $leftover "$bin/mpi_test" --gtest_filter='MpiJob.Moves' || die "with $leftover:"

# tessera-run provides no PMI; the error must say so, not that a rank threw.
if [[ -x $bin/quickstart && -x $bin/tessera-run ]]; then
  ! run 60 "$bin/tessera-run" --standalone --nproc-per-node 2 -- \
    env TESSERA_BACKEND=mpi TESSERA_MPI=$abi "$bin/quickstart" || die "ranks without a PMI went by:"
  says "first failure: rank . .*: \[mpi\] world: got 1 ranks from .*, expected the 2 that the env"
fi

# One program has one hash of the parameters, whichever backend carries the gradients: every row of
# the table.
if [[ -x $bin/quickstart ]]; then
  for ranks in $(worlds 2 3 4); do
    for strategy in $(strategies); do
      for backend in shm mpi; do
        job $ranks 120 env TESSERA_BACKEND=$backend "$bin/quickstart" --strategy=$strategy \
          --epochs=1 || die "quickstart --strategy=$strategy over $backend:"
        grep "^world $ranks: .*parameters [0-9a-f]" "$scratch/out" >"$scratch/$backend"
      done
      diff "$scratch/shm" "$scratch/mpi" || die "$strategy differs between shm and mpi on $ranks:"
    done
  done
fi

# Two hosts of two ranks on this machine: their group's API, the errors after a failure, and one
# hash of the parameters whatever is split.
on_hosts() {  # <limit in seconds> <program> <arguments>...
  local limit=$1
  shift
  run "$limit" "${launch[@]}" -n 2 env TESSERA_HOST=left "$@" : -n 2 env TESSERA_HOST=right "$@"
}
export TESSERA_TEST_HOSTS_JOB=1
on_hosts 240 "$bin/mpi_test" --gtest_filter='HostsJob.*' || die "two hosts of two ranks failed:"
says "PASSED"
on_hosts 60 "$bin/mpi_test" --gtest_filter='HostsScenario.Calls*' || die "calls that differ:"
# The others name the missing rank and end it (case 29 of docs/testing.md).
! on_hosts 60 "$bin/mpi_test" --gtest_filter='HostsScenario.RankThatDoesNotCome' ||
  die "a rank that does not come went by:"
says "MPI_Abort ends them"
for rank in 0 2 3; do
  says "all_reduce #0 'missed' on group 'world', rank $rank: timed out: rank 0 waited 2000 ms for rank 1 (pid [0-9]* on left), which"
done
# A rank in exit(), where it waits for the others, has left all its groups.
! on_hosts 40 "$bin/mpi_test" --gtest_filter='HostsScenario.RankThatExitsAtOnce' ||
  die "a rank that exits went by:"
for rank in 0 2 3; do
  says "on group 'world', rank $rank: rank 1 left the group after 1 collective"
done
! on_hosts 40 "$bin/mpi_test" --gtest_filter='HostsScenario.RankThatExitsWithCallsUnderWay' ||
  die "a rank that exits went by:"
for rank in 0 2 3; do
  says "barrier #4 'missed' on group 'world', rank $rank: rank 1 left the group after 4 collectives"
done
! on_hosts 40 "$bin/mpi_test" --gtest_filter='HostsScenario.RankThatExitsBesideAGroupOfItsHost' ||
  die "a rank that exits went by:"
# It has left its host's group, or the world; both messages end alike.
says "'missed' on group 'world/left', rank 0: rank 1 left the group after 1 collective"

# A rank with another backend is named at once.
# shellcheck disable=SC2016
! on_hosts 60 bash -c '[[ ${OMPI_COMM_WORLD_RANK-}${PMI_RANK-} != 1 ]] || export TESSERA_BACKEND=mpi
  exec "$0" "$@"' "$bin/mpi_test" --gtest_filter='HostsScenario.RanksOfDifferentBackends' ||
  die "ranks of different backends went by:"
says "rank 1 differs from rank 0 at entry 0: 'backend mpi .*' vs 'backend hosts .*TESSERA_BACKEND"
if [[ -x $bin/quickstart ]]; then
  for strategy in ddp $(strategies); do
    on_hosts 120 "$bin/quickstart" --strategy=$strategy --epochs=1 ||
      die "quickstart --strategy=$strategy on two hosts:"
    grep "^world 4: .*parameters [0-9a-f]" "$scratch/out" | grep -o "parameters.*" >"$scratch/$strategy"
    diff "$scratch/ddp" "$scratch/$strategy" || die "$strategy differs from ddp on two hosts:"
  done
  # Hosts of one and of three ranks: MPI alone is used, with its bits.
  hash_of() { grep "^world 4: .*parameters [0-9a-f]" "$scratch/out"; }
  job 4 120 env TESSERA_BACKEND=mpi "$bin/quickstart" --strategy=zero2 --epochs=1 || die "by MPI:"
  hash_of >"$scratch/flat"
  run 120 "${launch[@]}" -n 1 env TESSERA_HOST=left TESSERA_VERBOSE=1 \
    "$bin/quickstart" --strategy=zero2 --epochs=1 : -n 3 env TESSERA_HOST=right \
    "$bin/quickstart" --strategy=zero2 --epochs=1 || die "uneven hosts:"
  says "2 hosts with 1, 3 ranks: all communicate by MPI, each for itself"
  hash_of | diff "$scratch/flat" - || die "uneven hosts differ from MPI alone:"
fi

# Ranks that take their own branches, and one that evaluates alone.
if [[ -x $bin/branches_program ]]; then
  for ranks in $(worlds 2 3 4); do
    job $ranks 240 "$bin/branches_program" || die "branches on $ranks ranks:"
    says "rank $((ranks - 1)) of $ranks: [0-9]* configurations agree"
  done
fi

application=$bin/mpi_application_$abi
if [[ -x $application ]]; then
  # Many times, because MPICH's MPI_Finalize does not tolerate a thread inside MPI (mpi::leave()).
  for level in serialized $(printf 'multiple %.0s' $(seq "$(times 10)")); do
    job 4 60 "$application" $level || die "an application at $level failed:"
    says "rank 3 of 4: sum 4 over 2, application 4"
  done
  ends=($(printf 'leaves %.0s' $(seq "$(times 5)")))
  [[ $abi == mpich ]] || ends+=(outlives)
  for end in "${ends[@]}"; do
    job 3 60 "$application" multiple "$end" || die "a group that outlives MPI ($end) failed:"
    says "rank 0: .*; .*all_reduce #0 .*\(left the group\|MPI has been finalised\|mpi::leave() has ended it\)"
    says "rank 2: .*\(left the group\|MPI has been finalised\|mpi::leave() has ended it\)"
  done
  says "no time: .*got a timeout of 0 ms, expected at least 1 ms"
  says "between: .*got an intercommunicator, expected an intracommunicator"
  says "null: .*got MPI_COMM_NULL, expected one that this rank belongs to"
  for level in single funneled; do
    ! job 2 60 "$application" $level || die "an application at $level went by:"
    says "refused: .*thread level: got MPI_THREAD_${level^^} from the application's MPI_Init"
  done
fi
echo "ranks under ${launch[*]} agree"
