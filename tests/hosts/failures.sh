#!/usr/bin/env bash
# Fails a job of four ranks on two hosts that are namespaces of this machine (tools/two-hosts):
#
#   failures.sh <folder of the programs> <killed_rank | unheard_rank | killed_host | unheard_host |
#                                         cut_link | healed_link | stopped_rank>
#
# unheard: the launcher does not learn that the rank, or the ranks of a host, were killed, so it
# leaves the others alive. Every rank left alive must end within the timeout plus 5 s and name a
# missing rank with its host; no process may be left on either host; no rank may continue when a cut
# link heals (case 20). Exits with 77, "not run", if hosts cannot be created.
set -euo pipefail
bin=$1 scenario=$2
two_hosts=$(dirname "${BASH_SOURCE[0]}")/../../tools/two-hosts
timeout_ms=4000
scratch=$(mktemp -d)
name=fail-$$
job=''

clean_up() {
  [[ -z $job ]] || kill -TERM "$job" 2>/dev/null || true
  wait
  rm -rf "$scratch"
}
trap clean_up EXIT
not_run() { echo "failures.sh: not run: $*"; exit 77; }
die() {
  echo "failures.sh: $scenario: $*" >&2
  tail -n 100 "$scratch"/out "$scratch"/error.* >&2 || true
  exit 1
}
[[ -f $bin/../lib/libtessera_mpi_openmpi.so ]] || not_run "Tessera's module for openmpi was not built"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TESSERA_STORE
export OMP_NUM_THREADS=1 HOSTS_FOLDER=$scratch TEST_TIMEOUT_MS=$timeout_ms
[[ $scenario != stopped_rank ]] || export HOSTS_CONFIGURATION=ddp

now_ms() { echo $(($(date +%s%N) / 1000000)); }
# Returns true if a process runs; a zombie does not.
runs() { [[ -e /proc/$1/stat && $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) != Z* ]]; }
# left <pids>...: prints those that still run.
left() { for pid; do if runs "$pid"; then echo "$pid"; fi; done; }

rank=("$bin/hosts_test" --rank_body=hosts_until_failure)
if [[ $scenario == unheard_* ]]; then
  # For the launcher every process ends well, once all ranks have ended.
  cat >"$scratch/unheard" <<'END'
#!/usr/bin/env bash
"$@" || true
touch "$HOSTS_FOLDER/ended.$OMPI_COMM_WORLD_RANK"
until [[ $(ls "$HOSTS_FOLDER" | grep -c '^ended.[0-3]$') -eq 4 ]]; do sleep 0.05; done
END
  chmod +x "$scratch/unheard"
  rank=("$scratch/unheard" "${rank[@]}")
fi
"$two_hosts" --name "$name" -- "${rank[@]}" >"$scratch/out" 2>&1 &
job=$!
deadline=$(($(now_ms) + 120000))
until [[ $(ls "$scratch" | grep -c '^ready.[0-3]$') -eq 4 ]]; do
  if ! runs "$job"; then
    code=0
    wait "$job" || code=$?
    job=''
    ((code != 77)) || not_run "$(tail -n 1 "$scratch/out")"
    die "the job ended before it began, with $code"
  fi
  (($(now_ms) < deadline)) || die "the job did not begin"
  sleep 0.05
done
pids=()
for rank in 0 1 2 3; do pids+=("$(cat "$scratch/ready.$rank")"); done
[[ $(ip netns identify "${pids[1]}") == "$name-a" && $(ip netns identify "${pids[2]}") == "$name-b" ]]
# Kept open, because otherwise a new namespace may reuse one of these numbers.
exec {host_a}<"/proc/${pids[1]}/ns/net" {host_b}<"/proc/${pids[2]}/ns/net"
hosts=$(readlink "/proc/$$/fd/$host_a")'|'$(readlink "/proc/$$/fd/$host_b")
# of_hosts: the processes of both hosts, including those whose parents have ended.
of_hosts() {
  local link
  for link in /proc/[0-9]*/ns/net; do
    [[ "|$hosts|" != *"|$(readlink "$link" 2>/dev/null || echo none)|"* ]] || cut -d/ -f3 <<<"$link"
  done
}
for pid in "${pids[@]}"; do
  of_hosts | grep -x "$pid" >/dev/null || die "that process $pid is there is not seen"
done

begin=$(now_ms)
case $scenario in
  killed_rank | unheard_rank) kill -KILL "${pids[2]}" ;;
  killed_host) ip netns pids "$name-b" | xargs kill -KILL ;;
  unheard_host) kill -KILL "${pids[2]}" "${pids[3]}" ;;
  cut_link | healed_link) ip -n "$name-a" link set link0 down ;;
  stopped_rank) kill -STOP "${pids[2]}" ;;
  *) die "got an unknown scenario" ;;
esac

healed=''
while [[ -n $(left "${pids[@]}") ]]; do
  if [[ $scenario == healed_link && -z $healed &&
        $(ls "$scratch" | grep -c '^error.[0-3]$') -eq 4 ]]; then
    for rank in 0 1 2 3; do cp "$scratch/step.$rank" "$scratch/at_error.$rank"; done
    ip -n "$name-a" link set link0 up
    healed=yes
  fi
  if (($(now_ms) - begin > timeout_ms + 5000)); then
    die "$(($(now_ms) - begin)) ms later there are the processes $(left "${pids[@]}" | xargs)"
  fi
  sleep 0.02
done
echo "$scenario: all ranks had ended $(($(now_ms) - begin)) ms later"

# The deadline of the ranks does not hold for the launcher: its daemons may wait behind a cut link.
for _ in {1..200}; do
  kill -0 "$job" 2>/dev/null || break
  sleep 0.1
done
kill -TERM "$job" 2>/dev/null || true
code=0
wait "$job" || code=$?
job=''
[[ $scenario == unheard_* ]] || ((code != 0)) || die "the launcher returned 0"
if grep -q 'two-hosts: left on .*hosts_test' "$scratch/out"; then die "ranks were left"; fi
processes=$(of_hosts | xargs)
[[ -z $processes ]] || die "there are still the processes $processes"

host_of() { if (($1 < 2)); then echo "$name-a"; else echo "$name-b"; fi; }
# names <rank> <others>...: checks that its error names one of the others with pid and host.
names() {
  local rank=$1 file=$scratch/error.$1 other
  shift
  [[ -f $file ]] || die "rank $rank has said nothing"
  for other; do
    if grep -q "rank $other\( of the world\)\? (pid ${pids[other]} on $(host_of "$other"))" "$file"; then
      return
    fi
  done
  die "rank $rank does not name one of $* on $(host_of "$1")"
}
case $scenario in
  killed_rank)  # the launcher ends the others and prints the reason
    grep -q "rank 2 with PID .* on node $name-b exited on signal 9" "$scratch/out" ||
      die "the launcher does not name rank 2"
    for rank in 0 1 3; do  # those that ended on their own first
      [[ ! -f $scratch/error.$rank ]] || names "$rank" 2
    done ;;
  killed_host)  # depending on MPI it names the host or its own remote start
    grep -q "$name-b\|daemon has unexpectedly failed\|unable to reliably start" "$scratch/out" ||
      die "the launcher does not say why it ended"
    for rank in 0 1; do
      [[ ! -f $scratch/error.$rank ]] || names "$rank" 2 3
    done ;;
  unheard_rank | stopped_rank)
    for rank in 0 1 3; do names "$rank" 2; done
    # Rank 3 shares its memory and detects its end, whichever rank it waits for.
    for rank in 0 1 3; do
      [[ $scenario == stopped_rank ]] || grep -q ' died$' "$scratch/error.$rank" ||
        die "rank $rank does not say that rank 2 has died"
    done ;;
  unheard_host)
    for rank in 0 1; do names "$rank" 2 3; done ;;
  cut_link | healed_link)
    [[ $scenario == cut_link || -n $healed ]] || die "not all ranks have said why they ended"
    # Each rank names a rank of the other host for which it or its neighbour has waited.
    for rank in 0 1; do names "$rank" 2 3; done
    for rank in 2 3; do names "$rank" 0 1; done
    steps=()
    for rank in 0 1 2 3; do
      if [[ -n $healed ]]; then
        diff "$scratch/at_error.$rank" "$scratch/step.$rank" || die "rank $rank went on"
      fi
      steps+=("$(cat "$scratch/step.$rank")")
    done
    sorted=($(printf '%s\n' "${steps[@]}" | sort -n))
    ((sorted[3] - sorted[0] <= 1)) || die "ranks ended in steps ${steps[*]}" ;;
esac
