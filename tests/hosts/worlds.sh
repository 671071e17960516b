#!/usr/bin/env bash
# Ranks on this machine that all communicate through MPI, without sharing memory.
#
#   worlds.sh <folder of the programs> <openmpi | mpich> <ranks>...
#
# Every row of the table trains to the bits of ddp over shared memory. With a power of two of ranks,
# and on two hosts of two and of four ranks (TESSERA_HOST), Reproducible::kAnyWorldSize ends with
# the hash of one process. Exits with 77, "not run", if this MPI is not installed or its module was
# not built.
set -euo pipefail
bin=$1 abi=$2
worlds=("${@:3}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

not_run() { echo "worlds.sh: not run: $*"; exit 77; }
die() { echo "worlds.sh: $*" >&2; cat "$scratch/out" >&2; exit 1; }
case $abi in
  openmpi)
    program=$(command -v mpirun.openmpi || true)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    launch=("$program" --oversubscribe --bind-to none) ;;
  mpich)
    program=$(command -v mpiexec.hydra || true)
    launch=("$program") ;;
  *) die "got the MPI '$abi'" ;;
esac
[[ -n $program ]] || not_run "$abi is not installed"
[[ -f $bin/../lib/libtessera_mpi_$abi.so ]] || not_run "Tessera's module for $abi was not built"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TESSERA_STORE
export OMP_NUM_THREADS=1

# body <name> <launcher and flags>...
body() {
  local name=$1
  shift
  timeout --kill-after=5 240 "$@" >"$scratch/out" 2>&1 || die "$name under $*:"
}
# said <expression>: prints what its group matches.
said() { sed -n "s/^$1\$/\1/p" "$scratch/out"; }

any_size=("$bin/hosts_test" --rank_body=hosts_any_size)
body any_size "${any_size[@]}"
expected=$(said 'over loopback, 1 ranks: 4 rows end with \([0-9a-f]\{16\}\)')
[[ -n $expected ]] || die "one process has said no hash:"

for ranks in "${worlds[@]}"; do
  TESSERA_BACKEND=mpi body equal "${launch[@]}" -n "$ranks" "$bin/hosts_test" --rank_body=hosts_equal
  runs=$(said "over mpi, $ranks ranks: \([0-9]*\) runs equal ddp's over shm; 0 need .*")
  ((runs >= 70)) || die "$ranks ranks: expected at least 70 runs, got '$runs':"
  ((ranks != 3)) || continue  # not a power of two
  TESSERA_BACKEND=mpi body any_size "${launch[@]}" -n "$ranks" "${any_size[@]}"
  hash=$(said "over mpi, $ranks ranks: [0-9]* rows end with \(.*\)")
  [[ $hash == "$expected" ]] || die "$ranks ranks end with '$hash', one process with $expected:"
done

# On hosts, a short run takes only the larger of the two worlds, over one MPI
# (tests/support/breadth.h).
of_hosts=(2 4)
if [[ -z ${TESSERA_TEST_ALL:-} ]]; then
  of_hosts=(4)
  [[ $abi == openmpi ]] || { echo "over $abi ${worlds[*]} ranks train as over shared memory"; exit 0; }
fi
for locals in "${of_hosts[@]}"; do
  body any_size "${launch[@]}" -n $locals env TESSERA_HOST=left "${any_size[@]}" \
    : -n $locals env TESSERA_HOST=right "${any_size[@]}"
  hash=$(said "over hosts, $((2 * locals)) ranks: [0-9]* rows end with \(.*\)")
  [[ $hash == "$expected" ]] || die "2 x $locals ranks end with '$hash', one process with $expected:"
done
# The comparison can fail: without kAnyWorldSize four ranks of a host are summed in rank order.
other=$(said "in the world's order \(.*\)")
[[ -n $other && $other != "$expected" ]] || die "the order of sums changes nothing:"
echo "over $abi ${worlds[*]} ranks train as over shared memory"
