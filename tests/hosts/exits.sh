#!/usr/bin/env bash
# Two hosts with two ranks each (TESSERA_HOST); one rank leaves by exit(3) in a hook inside
# backward: it ends with that code, and the others name it.
#
#   exits.sh <folder of the programs> <times> <configuration>...
#
# Exits with 77, "not run", if Open MPI is not installed or its module was not built.
set -euo pipefail
bin=$1 times=$2
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

not_run() { echo "exits.sh: not run: $*"; exit 77; }
program=$(command -v mpirun.openmpi || true)
[[ -n $program ]] || not_run "Open MPI is not installed"
[[ -f $bin/../lib/libtessera_mpi_openmpi.so ]] || not_run "Tessera's module for openmpi was not built"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TESSERA_STORE
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=1 HOSTS_FOLDER=$scratch TEST_TIMEOUT_MS=4000  # longer than ranks wait for others after a failure

# Stores each rank's exit code and hides it from the launcher, which would kill the others.
cat >"$scratch/rank" <<'END'
#!/usr/bin/env bash
code=0
"$@" || code=$?
echo $code >"$HOSTS_FOLDER/code.$OMPI_COMM_WORLD_RANK"
END
chmod +x "$scratch/rank"
rank=("$scratch/rank" "$bin/hosts_test" --rank_body=hosts_exit_in_backward)

all_have_said() {
  for other in 0 1 3; do [[ -s $scratch/error.$other ]] || return 1; done
}

for configuration; do
  export HOSTS_CONFIGURATION=$configuration
  again=2
  for ((time = 1; time <= times; ++time)); do
    rm -f "$scratch"/error.* "$scratch"/code.*
    timeout --kill-after=5 60 "$program" --oversubscribe --bind-to none \
      -n 2 env TESSERA_HOST=left "${rank[@]}" : -n 2 env TESSERA_HOST=right "${rank[@]}" \
      >"$scratch/out" 2>&1 || true
    die() {
      echo "exits.sh: $configuration, time $time: $*" >&2
      cat "$scratch/out" "$scratch"/error.* >&2 || true
      exit 1
    }
    # On a busy machine ranks may not leave in time, and MPI_Abort ends all with any code. If it
    # ended a rank that had not yet named rank 2, this time does not count, but at most twice: a
    # rank that hangs never names it.
    if ! all_have_said && grep -q 'MPI_Abort ends them' "$scratch/out" && ((again > 0)); then
      again=$((again - 1)) time=$((time - 1))
      continue
    fi
    left=$(cat "$scratch/code.2" 2>/dev/null || echo none)
    if ! [[ $left =~ ^(none|1|137|143)$ ]] || ! grep -q 'MPI_Abort ends them' "$scratch/out"; then
      [[ $left == 3 ]] || die "rank 2 has ended with $left, expected 3"
    fi
    for other in 0 1 3; do
      grep -q 'rank 2\b' "$scratch/error.$other" || die "rank $other does not name rank 2"
    done
  done
done
echo "a rank that leaves by exit() ends with its code"
