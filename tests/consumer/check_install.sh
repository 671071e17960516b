#!/usr/bin/env bash
# Installs a build and uses it as a stranger would: find_package, compile, run.
#   check_install.sh <build folder> <scratch folder> <cmake> <C++ compiler>
set -euo pipefail
build=$1 scratch=$2 cmake=$3 compiler=$4
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$scratch"
"$cmake" --install "$build" --prefix "$scratch/prefix" >/dev/null

# Moved, so that nothing can depend on where it was installed; and no
# TESSERA_TORCH: the package remembers the LibTorch that it was built with.
mv "$scratch/prefix" "$scratch/moved"
env -u TESSERA_TORCH "$cmake" -S "$here" -B "$scratch/build" -G Ninja \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$scratch/moved"
"$cmake" --build "$scratch/build"
"$scratch/build/consumer"

torch=$(sed -n 's/^TESSERA_TORCH:PATH=//p' "$build/CMakeCache.txt")

# What is not built is named, and nothing is copied.
"$cmake" -S "$here/../.." -B "$scratch/unbuilt" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
  -DTESSERA_BUILD_TESTS=OFF -DTESSERA_BUILD_EXAMPLES=OFF -DTESSERA_TORCH="$torch" >/dev/null
! "$cmake" --install "$scratch/unbuilt" --prefix "$scratch/none" >"$scratch/log" 2>&1
tr -s ' \n' ' ' <"$scratch/log" | grep -q 'not built yet: libtessera_core.a .*tessera-run'
[[ ! -e $scratch/none ]]

# Where LibTorch is looked for, once the one that it was built with is gone.
sed -i 's|^set(LibTorch_DEFAULT_ROOT .*|set(LibTorch_DEFAULT_ROOT /no/such/libtorch)|' \
  "$scratch"/moved/lib*/cmake/Tessera/TesseraConfig.cmake
mkdir "$scratch/python"
ln -s "$torch" "$scratch/python/torch"
mkdir -p "$scratch/archive/share/cmake/Torch"
ln -s "$torch/include" "$torch/lib" "$scratch/archive/"

# configure <arguments of cmake and env>: CMAKE_PREFIX_PATH is $prefixes.
configure() {
  rm -rf "$scratch/again"
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

# Another minor version has another binary interface.
mkdir -p "$scratch/other/include/torch/headeronly" "$scratch/other/include/ATen/core"
ln -s "$torch/lib" "$scratch/other/lib"
touch "$scratch/other/include/ATen/core/Tensor.h"
printf '#define TORCH_VERSION_%s\n' 'MAJOR 2' 'MINOR 3' 'PATCH 1' \
  >"$scratch/other/include/torch/headeronly/version.h"
prefixes=$scratch/other
fails "and '$scratch/other' is 2.3.1: set TESSERA_TORCH to a"

# What is under include/ is there, and nothing else.
diff <(cd "$here/../../include" && find . -name '*.h' | sort) \
     <(cd "$scratch/moved/include" && find . -type f | sort)
