#!/usr/bin/env bash
# Runs quickstart, gpt and memory_compare on four ranks under a launcher other than tessera-run and
# compares the printed parameter hash, losses (to the last digit) and memory with tessera-run's
# (case 35 of docs/testing.md).
#
#   launchers.sh <folder of the programs> <openmpi[+mpi] | mpich[+mpi] | torchrun | srun> <text>
#
# With +mpi ranks communicate through that MPI (TESSERA_BACKEND=mpi), otherwise over shared memory.
# srun uses the SLURM that manages this machine, or one that starts for the test.
# Exits with 77, "not run", if the launcher is not installed or SLURM grants nothing.
set -euo pipefail
bin=$1 launcher=${2%+mpi} text=$3
carrier=()
[[ $2 != *+mpi ]] || carrier=(env TESSERA_BACKEND=mpi)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

not_run() { echo "launchers.sh: not run: $*"; exit 77; }

# first <text of its --version> <programs>...: prints the first program that is installed and whose
# version has that text.
first() {
  local said=$1 program version
  shift
  for program in "$@"; do
    # The shell's "<program>: command not found" would match a text that is part of the name.
    command -v "$program" >/dev/null || continue
    # No pipe: it would fail if grep stopped reading before the program has printed everything.
    version=$("$program" --version 2>&1 || true)
    if [[ ${version,,} =~ $said ]]; then
      echo "$program"
      return
    fi
  done
}

case $launcher in
  openmpi)
    program=$(first 'open mpi|openrte' mpirun.openmpi mpirun)
    [[ -n $program ]] || not_run "Open MPI is not installed"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    launch=("$program" --oversubscribe -n 4) ;;
  mpich)
    program=$(first hydra mpiexec.hydra mpiexec)
    [[ -n $program ]] || not_run "MPICH is not installed"
    launch=("$program" -n 4) ;;
  torchrun)
    program=$(command -v torchrun || true)
    if [[ -z $program ]]; then  # from the benchmarks' peers
      program=$("$(dirname "${BASH_SOURCE[0]}")/../../bench/peers/setup.sh" path)
      program=${program%/*}/torchrun
      # setup.sh writes this file last, so an interrupted installation lacks it.
      [[ -e ${program%/bin/*}/requirements.txt ]] || not_run "torchrun is not installed"
    fi
    [[ -x $program ]] || not_run "torchrun is not installed"
    launch=("$program" --no-python --standalone --nproc-per-node 4) ;;
  srun)
    command -v srun >/dev/null || not_run "SLURM is not installed"
    grants() { timeout 20 srun --immediate=5 --nodes 1 --ntasks 4 --overcommit true >"$scratch/srun" 2>&1; }
    if ! grants; then
      [[ -z ${SLURM_CONF:-} ]] || not_run "SLURM grants no four tasks: $(tail -n 1 "$scratch/srun")"
      rm -rf "$scratch"  # nothing manages this machine: start a SLURM for the test
      exec "$(dirname "${BASH_SOURCE[0]}")/one_node_slurm.sh" "${BASH_SOURCE[0]}" "$@"
    fi
    launch=(srun --nodes 1 --ntasks 4 --overcommit --kill-on-bad-exit=1) ;;
  *) echo "launchers.sh: got the launcher '$launcher'" >&2; exit 64 ;;
esac

if [[ ${#carrier[@]} -gt 0 && ! -f $bin/../lib/libtessera_mpi_$launcher.so ]]; then
  not_run "Tessera's module for $launcher was not built"
fi
without_number=("${launch[@]::${#launch[@]}-1}")
launch+=("${carrier[@]}")

# Ranks must learn their number, address and thread count from the launcher alone.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TESSERA_STORE \
  TESSERA_JOB_TOKEN OMP_NUM_THREADS

# both <name> <pattern> <program> <arguments>...: its output under both launchers, without the
# ranks' prefixes.
both() {
  local name=$1 pattern=$2
  shift 2
  touch "$scratch/losses"
  "$bin/tessera-run" --standalone --nproc-per-node 4 -- "$@" 2>"$scratch/errors" |
    sed 's/^\[[0-9]*\] //' | grep -E "$pattern" >"$scratch/$name.own"
  cat "$scratch/losses" >>"$scratch/$name.own"
  "${launch[@]}" "$@" >"$scratch/out" 2>"$scratch/errors" || {
    cat "$scratch/out" "$scratch/errors" >&2
    echo "launchers.sh: $name failed under ${launch[*]}" >&2
    exit 1
  }
  grep -E "$pattern" "$scratch/out" | cat - "$scratch/losses" >"$scratch/$name.$launcher"
  [[ -s $scratch/$name.own ]]
  diff "$scratch/$name.own" "$scratch/$name.$launcher" || {
    echo "launchers.sh: $name differs between tessera-run and ${launch[*]} (above)" >&2
    exit 1
  }
}

both quickstart '^world 4: .*parameters [0-9a-f]{16}' "$bin/quickstart" --strategy=zero3 --epochs=3
# Over MPI ranks share no memory, so byte counts differ. On two hosts the same command works, too.
sizes=(--layers=3 --heads=2 --width=36 --vocabulary=50 --sequence=16)
compares() {  # <hosts> <configurations> <command>...
  "${@:3}" >"$scratch/out" 2>"$scratch/errors" &&
    grep -q '^Persistent bytes are as predicted, to the byte, in every configuration' "$scratch/out" &&
    [[ $(grep -c '^[a-z0-9:,]* *predicted' "$scratch/out") -eq $2 ]] && return
  cat "$scratch/out" "$scratch/errors" >&2
  echo "launchers.sh: memory_compare failed on $1 under $launcher" >&2
  exit 1
}
if [[ ${#carrier[@]} -eq 0 ]]; then
  both memory_compare '^(ddp|zero3) |as predicted, to the byte' "$bin/memory_compare" "${sizes[@]}" \
    --configurations='ddp zero3'
else
  memory=("$bin/memory_compare" "${sizes[@]}")
  compares 'one host' 2 "${launch[@]}" "${memory[@]}" --configurations='ddp zero3'
  compares 'two hosts' 11 "${without_number[@]}" 2 env TESSERA_HOST=a "${memory[@]}" \
    : -n 2 env TESSERA_HOST=b "${memory[@]}"
fi
both gpt '^parameters  *[0-9a-f]{16}' "$bin/gpt" --strategy=zero2 --data="$text" --layers=3 \
  --heads=2 --width=36 --context=32 --batch=2 --steps=4 --warmup=2 --eval_every=2 \
  --eval_batches=4 --sample_bytes=16 --prompt=int --losses_out="$scratch/losses"
[[ $(wc -l <"$scratch/losses") -eq 4 ]]

# The comparison can fail: other data trains other parameters.
"${launch[@]}" "$bin/quickstart" --strategy=zero3 --epochs=2 2>/dev/null |
  grep '^world 4: ' >"$scratch/other"
if diff -q "$scratch/quickstart.own" "$scratch/other" >/dev/null; then
  echo "launchers.sh: two runs that differ print the same: nothing was compared" >&2
  exit 1
fi
echo "the same under tessera-run and ${launch[*]}"
