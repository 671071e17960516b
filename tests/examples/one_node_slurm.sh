#!/usr/bin/env bash
# Runs a command together with a SLURM of one node (this machine) that starts and ends with it. Its
# daemons keep their sockets and files in a folder of their own and use ports on the loopback.
#
#   one_node_slurm.sh <command> <arguments>...
#
# Ends with the command's exit code. Exits with 77, "not run", and the reason if SLURM's daemons are
# not installed or do not start, or without root.
set -euo pipefail
[[ $# -gt 0 ]] || { echo "one_node_slurm.sh: got no command, expected one" >&2; exit 64; }

not_run() { echo "one_node_slurm.sh: not run: $*"; exit 77; }
for daemon in munged slurmctld slurmd; do
  [[ -x /usr/sbin/$daemon ]] || not_run "there is no $daemon (Debian: slurmctld, slurmd)"
done
command -v srun >/dev/null || not_run "there is no srun (Debian: slurm-client)"
[[ $EUID -eq 0 ]] || not_run "slurmd needs root"

# Runs in its own process namespace, so that no process is left over: the daemon of an ending step
# waits for the controller, and slurmd for that daemon, without limit.
if [[ $$ -ne 1 ]]; then
  namespace=(unshare --pid --fork --kill-child --mount-proc)
  "${namespace[@]}" true 2>/dev/null || not_run "a process namespace is refused"
  exec "${namespace[@]}" bash "${BASH_SOURCE[0]}" "$@"
fi

scratch=$(mktemp -d /tmp/one-node-slurm.XXXXXX)  # short, because socket paths are limited
daemons=()
clean_up() {
  trap '' INT TERM
  kill -KILL -1 2>/dev/null || true  # all of this namespace
  wait 2>/dev/null
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

name=$(hostname -s)
port=$((20000 + RANDOM % 10000))
export SLURM_CONF=$scratch/slurm.conf
mkdir "$scratch"/{state,spool}
cat >"$SLURM_CONF" <<CONF
ClusterName=here
SlurmctldHost=$name(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.socket
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
NodeName=$name NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=here Nodes=$name Default=YES State=UP
CONF
(umask 077 && head -c 1024 /dev/urandom >"$scratch/munge.key")

# start <name> <command>...: runs it in the background with output to a file.
start() {
  local name=$1
  shift
  "$@" >"$scratch/$name.log" 2>&1 &
  daemons+=($!)
}
start munged /usr/sbin/munged --foreground --force --socket="$scratch/munge.socket" \
  --key-file="$scratch/munge.key" --log-file="$scratch/munged.words" --pid-file="$scratch/munged.pid" \
  --seed-file="$scratch/munged.seed"
for step in {1..100}; do [[ -S $scratch/munge.socket ]] && break || sleep 0.1; done
start slurmctld /usr/sbin/slurmctld -D
start slurmd /usr/sbin/slurmd -D -N "$name"
is_idle() { [[ $(sinfo --noheader --format=%T 2>/dev/null) == idle ]]; }
for step in {1..300}; do
  if is_idle || ! kill -0 "${daemons[@]}" 2>/dev/null; then break; fi
  sleep 0.1
done
if ! is_idle; then
  tail -n 5 "$scratch"/*.log "$scratch/munged.words" 2>/dev/null || true
  not_run "its daemons did not start (above)"
fi
"$@"
