#!/usr/bin/env bash
# Checks that programs neither link nor need MPI: only the modules, one per binary interface, call
# it, and they are opened if ranks request it.
#   check_linkage.sh <folder of the programs> <C++ compiler>
set -euo pipefail
bin=$1 compiler=$2
lib=$bin/../lib
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
die() { echo "check_linkage.sh: $*" >&2; exit 1; }

mpi='lib(mpi|mpich|open-rte|open-pal|prrte|pmix|pmi)[^a-z]'
# links <ELF file>: prints the MPI libraries that it names.
links() { readelf -d "$1" | grep 'NEEDED' | grep -E "\[$mpi" || true; }
# calls <archive or ELF file>...: prints the MPI functions that it uses but does not define.
calls() { nm -A -u "$@" 2>/dev/null | grep -E ' U P?MPI_' || true; }

checked=0
for file in "$bin"/* "$lib"/libtessera_*.so; do
  # An application that uses MPI itself links it.
  [[ $file != */mpi_application_* && -f $file && $(head -c 4 "$file") == $'\x7fELF' ]] || continue
  [[ -z $(links "$file") ]] || die "$file links MPI:$(links "$file")"
  [[ $file == */libtessera_mpi_* || -z $(calls "$file") ]] || die "$(calls "$file" | head -n 3)"
  checked=$((checked + 1))
done
[[ -x $bin/quickstart ]] && ((checked >= 5)) || die "got $checked programs in $bin, expected more"
[[ -z $(calls "$lib"/libtessera_*.a) ]] || die "$(calls "$lib"/libtessera_*.a | head -n 3)"

# The control: a program that links an MPI, and code that calls one.
echo 'extern "C" int MPI_Init(int*, char***) { return 0; }' >"$scratch/mpi.cc"
echo 'extern "C" int MPI_Init(int*, char***); int main() { return MPI_Init(nullptr, nullptr); }' \
  >"$scratch/main.cc"
"$compiler" -shared -fPIC -Wl,-soname,libmpi.so.40 "$scratch/mpi.cc" -o "$scratch/libmpi.so"
"$compiler" "$scratch/main.cc" "$scratch/libmpi.so" -o "$scratch/main"
[[ -n $(links "$scratch/main") && -n $(calls "$scratch/main") ]] || die "a program with MPI went by"

# opened <environment>...: prints the MPI libraries that ranks of quickstart look for.
opened() {
  rm -f "$scratch"/log*
  env -u LD_PRELOAD "$@" LD_DEBUG=libs LD_DEBUG_OUTPUT="$scratch/log" "$bin/tessera-run" \
    --standalone --nproc-per-node 2 "$bin/quickstart" --strategy=zero3 --epochs=1 \
    >"$scratch/out" 2>&1 || true
  grep -h -o -E "find library=$mpi.*" "$scratch"/log* | sort -u || true
}
found=$(opened)
grep -q '^\[0\] world 2: .*parameters [0-9a-f]' "$scratch/out" || { cat "$scratch/out"; die "no run"; }
[[ -z $found ]] || die "without being asked to, ranks look for $found"
[[ -n $(opened TESSERA_BACKEND=mpi) ]] || die "that ranks look for MPI is not seen"
echo "$checked programs and modules link no MPI"
