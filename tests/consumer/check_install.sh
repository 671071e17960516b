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

# What is under include/ is there, and nothing else.
diff <(cd "$here/../../include" && find . -name '*.h' | sort) \
     <(cd "$scratch/moved/include" && find . -type f | sort)
