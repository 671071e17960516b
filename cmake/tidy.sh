#!/usr/bin/env bash
# clang-tidy (.clang-tidy) on the .cc files that differ from a commit, or on all.
#   cmake/tidy.sh <build folder> <commit>|all
set -euo pipefail
build=$1
base=${2:-HEAD}
# "all" means: all files that differ from an empty tree.
[[ $base != all ]] || base=$(git hash-object -t tree /dev/null)
changed=$(git diff --name-only --diff-filter=d "$base" -- '*.cc') || exit
mapfile -t files < <(printf '%s' "$changed")
if [[ ${#files[@]} == 0 ]]; then echo "tidy: no .cc differs from $base"; exit; fi

# Uses a build folder of its own, because clang cannot read GCC's precompiled header, and because
# each file is checked alone, without the includes of other files in a unity build.
cmake --preset release -B "$build" -DTESSERA_TORCH="$(cmake/bootstrap.sh path)" \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_UNITY_BUILD=OFF \
  -DCMAKE_CXX_COMPILER_LAUNCHER= -DTESSERA_CCACHE=OFF >/dev/null
# Some files do not belong to this build, but to other projects (tests/consumer) or compilers
# (fuzzing).
is_built() { grep -qF "/$1\"" "$build/compile_commands.json"; }
for i in "${!files[@]}"; do
  is_built "${files[i]}" || { echo "tidy: ${files[i]} is not built, left out"; unset "files[i]"; }
done
echo "tidy: ${#files[@]} files that differ from $base"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "${JOBS:-1}" clang-tidy-14 --quiet -p "$build"
