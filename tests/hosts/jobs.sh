#!/usr/bin/env bash
# Runs ranks on two hosts that are namespaces of this machine (tools/two-hosts).
#
#   jobs.sh <folder of the programs> <equal | any_size | alone> <openmpi | mpich>
#
# equal: every row of the table trains to the bits of ddp, with different branches on each rank.
# any_size: every row ends with the hash of one process (Reproducible::kAnyWorldSize). alone: one
# rank evaluates without the others. Exits with 77, "not run", if hosts cannot be created.
set -euo pipefail
bin=$1 body=$2 abi=$3
two_hosts=$(dirname "${BASH_SOURCE[0]}")/../../tools/two-hosts
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

not_run() { echo "jobs.sh: not run: $*"; exit 77; }
[[ -f $bin/../lib/libtessera_mpi_$abi.so ]] || not_run "Tessera's module for $abi was not built"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TESSERA_STORE
export OMP_NUM_THREADS=1

locals=2
# With two ranks per host the order of sums is always kAnyWorldSize's; with four it is not.
[[ $body != any_size ]] || locals=4
code=0
"$two_hosts" --launcher "$abi" --ranks-per-host "$locals" -- "$bin/hosts_test" --rank_body="hosts_$body" \
  >"$scratch/out" 2>&1 || code=$?
cat "$scratch/out"
((code == 0)) || exit "$code"
case $body in
  equal)
    runs=$(sed -n "s/^over hosts, 4 ranks: \([0-9]*\) runs equal ddp's over hosts; .*/\1/p" \
      "$scratch/out")
    ((runs >= 40)) || { echo "jobs.sh: expected at least 40 runs, got '$runs'" >&2; exit 1; } ;;
  any_size)
    "$bin/hosts_test" --rank_body=hosts_any_size >"$scratch/one"
    hash=$(sed -n 's/^over loopback, 1 ranks: .* rows end with //p' "$scratch/one")
    grep -q -x "over hosts, 8 ranks: [0-9]* rows end with ${hash:-nothing}" "$scratch/out" ||
      { echo "jobs.sh: one process ends with '$hash'" >&2; exit 1; }
    # The comparison can fail: the hosts' own order of sums differs.
    order=$(sed -n "s/^in the world's order //p" "$scratch/out")
    [[ -n $order && $order != "$hash" ]] || { echo "jobs.sh: the order changes nothing" >&2; exit 1; } ;;
  alone)
    if grep -q '^left out: ' "$scratch/out"; then not_run "there are no one-sided reads"; fi
    grep -q '^one rank has evaluated alone' "$scratch/out" ;;
esac
