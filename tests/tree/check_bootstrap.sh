#!/usr/bin/env bash
# Tests bootstrap.sh's messages for other systems, with fake files and programs, and make with a
# wrong JOBS: installs nothing, fetches nothing, needs no root.
#   check_bootstrap.sh <bootstrap.sh>
set -uo pipefail
bootstrap=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/{bin,torch/lib,torch/include/ATen}
touch "$scratch/torch/lib/libtorch_cpu.so"
failed=0

program() {  # name, printed version; every other call succeeds
  printf '#!/bin/sh\ncase $1 in --version) echo "%s" ;; *) cat >/dev/null ;; esac\n' "$2" \
    >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}
system() {  # ID, VERSION_ID, g++, cmake
  printf 'NAME="Some Name"\nID=%s\nVERSION_ID="%s"\n' "$1" "$2" >"$scratch/os-release"
  program g++ "g++ (Packager $3-1~22.04) $3"
  program cmake "cmake version $4"
}
printf '#!/bin/sh\necho "apt-get was called: $*"; exit 1\n' >"$scratch/bin/apt-get"
chmod +x "$scratch/bin/apt-get"
for name in ninja git ld.lld python3 dpkg dpkg-shlibdeps file pkill; do program $name "$name 99"; done

says() {  # arguments of bootstrap.sh
  said=$(env -u CXX "${environment[@]}" PATH="$scratch/bin:$PATH" OS_RELEASE="$scratch/os-release" \
    TESSERA_TORCH="$scratch/torch" XDG_CACHE_HOME="$scratch/cache" "$bootstrap" "$@" 2>&1 </dev/null)
  code=$?
}
expect() {  # exit code, expected texts; after "not" texts that must be missing
  local text sense=yes
  [[ $code == "$1" ]] || { echo "code $code, expected $1: $said"; failed=1; }
  shift
  for text in "$@"; do
    if [[ $text == not ]]; then sense=no; continue; fi
    [[ $sense == yes && $said == *"$text"* || $sense == no && $said != *"$text"* ]] ||
      { echo "expected ($sense) '$text': $said"; failed=1; }
  done
}
environment=()

system debian 12 12.2.0 3.25.1
says requirements
expect 0 "Packages: g++ cmake " "libabsl-dev" "dpkg-dev" not "too old" "has g++" "newer"
[[ $(wc -l <<<"$said") == 1 ]] || { echo "Debian 12 differs from itself: $said"; failed=1; }
says
expect 0 "LibTorch: $scratch/torch" not "apt-get"

system ubuntu 22.04 11.4.0 3.22.1
says requirements
expect 0 "Ubuntu 22.04 has g++ 11, CMake 3.22, Abseil 20210324" "python3.11" universe not "newer is needed"
says
expect 0 "LibTorch: $scratch/torch"

system ubuntu 24.04 13.2.0 3.28.3
says requirements
expect 0 "Ubuntu 24.04 has g++ 13, CMake 3.28, Abseil 20220623" "clang-format-14" \
  not "22.04" "newer is needed"

system fedora 40 14.0.1 3.28.2
says requirements
expect 0 "This is 'fedora 40'" "Debian 12's" not "Ubuntu"

# A version that is too old is reported by name, with the remedy, before anything else can fail.
system ubuntu 20.04 9.4.0 3.16.3
says requirements
expect 0 "This is 'ubuntu 20.04'" "g++ is 9.4.0, 11 or newer is needed: apt-get install g++-" \
  "cmake is 3.16.3, 3.22 or newer is needed: python3 -m pip install cmake"
says
expect 1 "g++ is 9.4.0, 11 or newer" "cmake is 3.16.3, 3.22 or newer" "This is 'ubuntu 20.04'" \
  not "LibTorch:"
environment=(CXX=g++)  # the user has chosen the compiler
says requirements
expect 0 "cmake is 3.16.3" not "g++ is 9.4.0"

make_says() {  # JOBS
  said=$(env -u MAKEFLAGS make -C "${bootstrap%/cmake/*}" JOBS="$1" help 2>&1)
  code=$?
}
for jobs in '' 0 -1 x; do
  make_says "$jobs"
  expect 2 "JOBS: got '$jobs', expected a whole number from 1" not Usage
done
make_says 3
expect 0 "make demo"
exit $failed
