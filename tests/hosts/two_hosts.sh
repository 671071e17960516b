#!/usr/bin/env bash
# Tests tools/two-hosts itself: where ranks run, what they receive, what it refuses, and that
# nothing is left.
#
#   two_hosts.sh
#
# Exits with 77, "not run", if hosts cannot be created.
set -euo pipefail
two_hosts=$(dirname "${BASH_SOURCE[0]}")/../../tools/two-hosts
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
name=self-$$

die() { echo "two_hosts.sh: $*" >&2; cat "$scratch/out" >&2; exit 1; }
# expect <exit code> <arguments>...
expect() {
  local expected=$1 code=0
  shift
  "$two_hosts" "$@" >"$scratch/out" 2>&1 || code=$?
  ((code != 77)) || { cat "$scratch/out"; exit 77; }
  ((code == expected)) || die "$*: got exit code $code, expected $expected"
}
nothing_is_left() {
  [[ -z $(ip netns list | grep "^$name-") ]] || die "there are still namespaces of $name"
  [[ -z $(pgrep -f "two-hosts.*$name|sleep 24[0-9].$$" || true) ]] || die "there are still processes"
}

GIVEN='a  b' expect 0 --name "$name" --ranks-per-host 2 --bytes "$scratch/bytes" -- \
  sh -c 'echo "$OMPI_COMM_WORLD_RANK $(hostname) $PWD [$GIVEN] [$1]"' sh "it's \$x"
for line in "0 $name-a" "1 $name-a" "2 $name-b" "3 $name-b"; do
  grep -q -x -F "$line $PWD [a  b] [it's \$x]" "$scratch/out" || die "there is no rank '$line'"
done
grep -q "^$name-a [1-9][0-9]* [1-9][0-9]*\$" "$scratch/bytes"
nothing_is_left

expect 7 --name "$name" -- sh -c 'exit 7'
expect 0 --name "$name" --rate 100mbit --ranks-per-host 1 -- tc qdisc show dev link0
[[ $(grep -c 'tbf .*rate 100Mbit' "$scratch/out") -eq 2 ]] || die "the link has no rate"

# There are no other links, and a process that leaves its session is named and killed.
expect 0 --name "$name" --ranks-per-host 1 -- sh -c 'ls /sys/class/net; ls -A /dev/shm | grep x$$;
  setsid sleep 240.'$$' >/dev/null 2>&1 </dev/null & exit 0'
# Ignores Open MPI's own warning about a late setpgid().
[[ $(grep -vE '^two-hosts|plm:rsh' "$scratch/out" | sort -u | xargs) == 'link0 lo' ]] ||
  die "there are other links"
[[ $(grep -c "two-hosts: left on $name-[ab], killed: [0-9]* sleep" "$scratch/out") -eq 2 ]] ||
  die "what was left is not named"
nothing_is_left

expect 64 --rate 5x -- true
expect 64 --launcher lam -- true
expect 64 --nodes 3 -- true
expect 64 --name Upper -- true
expect 64 --name "$name"

# A signal ends everything.
"$two_hosts" --name "$name" -- sleep 241.$$ >"$scratch/out" 2>&1 &
until [[ $(pgrep -c -f "^sleep 241.$$") -eq 4 ]]; do
  kill -0 $! || die "it ended"
  sleep 0.05
done
expect 64 --name "$name" -- true  # in use
grep -q 'which is in use' "$scratch/out" || die "a name in use is not named"
kill -TERM $!
code=0
wait $! || code=$?
((code == 143)) || die "got exit code $code after SIGTERM, expected 143"
nothing_is_left
echo "two-hosts does what it says"
