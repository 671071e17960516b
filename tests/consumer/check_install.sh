#!/usr/bin/env bash
# Installs a build and uses it as a user would: find_package, compile, run.
#   check_install.sh <build folder> <scratch folder> <cmake> <C++ compiler>
set -euo pipefail
build=$1 scratch=$2 cmake=$3 compiler=$4
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$scratch"
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache  # for every build below
"$cmake" --install "$build" --prefix "$scratch/prefix" >/dev/null

# Moved, so that nothing can depend on the place of installation; and without TESSERA_TORCH, because
# the package remembers its LibTorch.
mv "$scratch/prefix" "$scratch/moved"
ln -s moved "$scratch/used"  # check_package.sh puts packages in its place
env -u TESSERA_TORCH "$cmake" -S "$here" -B "$scratch/build" -G Ninja \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$scratch/used"
"$cmake" --build "$scratch/build"
"$scratch/build/consumer"

# A program outside the prefix finds the modules inside it.
module=$(find "$scratch/moved" -name libtessera_mpi_openmpi.so)
mpirun=$(command -v mpirun.openmpi || true)
if [[ -n $module && -n $mpirun ]]; then
  env -u LD_LIBRARY_PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    TESSERA_BACKEND=mpi timeout 120 "$mpirun" --oversubscribe -n 2 "$scratch/build/consumer"
elif [[ -n $module ]]; then
  echo "that programs find $module was NOT checked: Open MPI is not installed"
fi

torch=$(sed -n 's/^TESSERA_TORCH:PATH=//p' "$build/CMakeCache.txt")

# Files that are not built are named, and nothing is copied.
"$cmake" -S "$here/../.." -B "$scratch/not built" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
  -DTESSERA_BUILD_TESTS=OFF -DTESSERA_BUILD_EXAMPLES=OFF -DTESSERA_TORCH="$torch" >/dev/null
! "$cmake" --install "$scratch/not built" --prefix "$scratch/none" >"$scratch/log" 2>&1
tr -s ' \n' ' ' <"$scratch/log" | grep -q 'not built yet: libtessera_core.a libtessera_optim.a .*tessera-run'
[[ ! -e $scratch/none ]]

# Where LibTorch is looked for if the one of the build is gone.
find "$scratch/moved" -name TesseraBuiltWith.cmake -delete
mkdir "$scratch/python"
ln -s "$torch" "$scratch/python/torch"
mkdir -p "$scratch/archive/share/cmake/Torch"
ln -s "$torch/include" "$torch/lib" "$scratch/archive/"

# configure <arguments of cmake and env>: with $prefixes in CMAKE_PREFIX_PATH.
configure() {
  [[ -n ${keep:-} ]] || rm -rf "$scratch/again"
  env -u TESSERA_TORCH -u CMAKE_PREFIX_PATH XDG_CACHE_HOME=/no/such "$@" "$cmake" -S "$here" \
    -B "$scratch/again" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
    "-DCMAKE_PREFIX_PATH=$scratch/moved;$prefixes" "${flags[@]}" >"$scratch/log" 2>&1
}
finds() {
  configure "$@" || { echo "no LibTorch found: $prefixes $* ${flags[*]}"; cat "$scratch/log"; exit 1; }
}
fails() { # <expected text>
  ! configure HOME=/no/such || { echo "configured without: $1"; exit 1; }
  tr -s ' \n' ' ' <"$scratch/log" | grep -qF -- "$1" || { cat "$scratch/log"; exit 1; }
}
flags=()
for prefixes in "$torch" "$scratch/python" "$scratch/archive/share/cmake"; do finds; done
prefixes=
finds CONDA_PREFIX="$torch"
finds CMAKE_PREFIX_PATH="/no/such:$scratch/python"
finds TESSERA_TORCH="$torch"
flags=("-DTorch_DIR=$scratch/archive/share/cmake/Torch") && finds
printf 'add_library(torch_cpu SHARED IMPORTED)\nset_target_properties(torch_cpu PROPERTIES %s %s)\n' \
  IMPORTED_LOCATION "$torch/lib/libtorch_cpu.so" >"$scratch/target.cmake"
flags=("-DCMAKE_PROJECT_INCLUDE=$scratch/target.cmake") && finds
flags=()
fails "run cmake/bootstrap.sh, or set TESSERA_TORCH or CMAKE_PREFIX_PATH"
keep=yes prefixes=$torch  # this helps in the same build folder
finds
keep=

# Another minor version has another binary interface.
mkdir -p "$scratch/other/include/torch/headeronly" "$scratch/other/include/ATen/core"
ln -s "$torch/lib" "$scratch/other/lib"
touch "$scratch/other/include/ATen/core/Tensor.h"
printf '#define TORCH_VERSION_%s\n' 'MAJOR 2' 'MINOR 3' 'PATCH 1' \
  >"$scratch/other/include/torch/headeronly/version.h"
prefixes=$scratch/other
fails "and '$scratch/other' is 2.3.1: set TESSERA_TORCH to a"
keep=yes flags=("-DTESSERA_TORCH=$torch")
finds
keep= flags=()

# Only the Abseil of the build is accepted, because linking another would fail.
mkdir -p "$scratch/absl/lib/cmake/absl"
touch "$scratch/absl/lib/cmake/absl/abslConfig.cmake"
printf 'set(PACKAGE_VERSION 20200101)\nif(NOT PACKAGE_FIND_VERSION)\n  set(%s TRUE)\nendif()\n' \
  PACKAGE_VERSION_COMPATIBLE >"$scratch/absl/lib/cmake/absl/abslConfigVersion.cmake"
prefixes="$scratch/absl;$torch"
flags=(-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF
       "-DCMAKE_MAKE_PROGRAM=$(command -v ninja)")
fails "abslConfig.cmake, version: 20200101"

# Exactly the files under include/ are installed.
diff <(cd "$here/../../include" && find . -name '*.h' | sort) \
     <(cd "$scratch/moved/include" && find . -type f | sort)
