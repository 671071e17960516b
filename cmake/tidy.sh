#!/usr/bin/env bash
# clang-tidy (.clang-tidy) on the .cc files that differ from a commit.
#   cmake/tidy.sh <build folder> <commit>
set -euo pipefail
build=$1
mapfile -t files < <(git diff --name-only --diff-filter=d "${2:-HEAD}" -- '*.cc')
if [[ ${#files[@]} == 0 ]]; then echo "tidy: no .cc differs from ${2:-HEAD}"; exit; fi

# A configuration of its own: clang cannot read GCC's precompiled header, and each file is looked at
# alone, without what others of its batch include.
cmake --preset release -B "$build" -DTESSERA_TORCH="$(cmake/bootstrap.sh path)" \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_UNITY_BUILD=OFF \
  -DCMAKE_CXX_COMPILER_LAUNCHER= -DTESSERA_CCACHE=OFF >/dev/null
echo "tidy: ${#files[@]} files that differ from ${2:-HEAD}"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "${JOBS:-1}" clang-tidy --quiet -p "$build"
