#!/usr/bin/env bash
# Installs the requirements of a build: packages of Debian or Ubuntu, and LibTorch in a cache
# outside the tree, shared by all clones. If all is present, it does nothing.
#
#   cmake/bootstrap.sh          install and fetch what is missing
#   cmake/bootstrap.sh path     only print the LibTorch folder
#   cmake/bootstrap.sh requirements  only print packages, versions and the differences of this
#                               system from Debian 12
#   cmake/bootstrap.sh format   also clang-format, with which the tests check formatting
#   cmake/bootstrap.sh lint     also clang-format and clang-tidy
#   cmake/bootstrap.sh docs     only Doxygen and Sphinx, for make docs; fetches nothing
#   cmake/bootstrap.sh ci       also the packages that continuous integration tests with: clang-format,
#                               Open MPI and MPICH (and what --mpi fetches), SLURM, iproute2, ccache, venv
#   cmake/bootstrap.sh --cuda   also LibTorch's CUDA half and NVIDIA's libraries,
#                               for running on GPUs; no build needs them
#   cmake/bootstrap.sh --mpi    also the headers of Open MPI and MPICH (Debian's packages,
#                               unpacked into the cache, not installed), for their modules
#
#   TORCH=2.15.0                another pinned version (cmake/wheels-*.txt)
#   TESSERA_TORCH=<folder>      use this LibTorch (include/ and lib/), fetch none
#   XDG_CACHE_HOME              the cache is $XDG_CACHE_HOME/tessera
#   CXX=g++-12                  another compiler than g++; CMake reads it, too
#   OS_RELEASE=<file>           describes this system instead of /etc/os-release
set -euo pipefail
unset CDPATH  # cd would print where it went

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=${TORCH:-2.11.0}
cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/tessera
torch=${TESSERA_TORCH:-$cache/libtorch-$version}

say() { echo "bootstrap: $*" >&2; }
die() { say "$@"; exit 1; }

# Each line: package, how to check that it is present, and the oldest sufficient version.
requirements() {
  if [[ ${1:-} == docs ]]; then cat <<'LIST'
doxygen          command doxygen
furo             system-module furo
python3-breathe  system-module breathe
python3-myst-parser system-module myst_parser
LIST
    return
  fi
  [[ -n ${CXX:-} ]] || echo "g++ command g++ 11"
  cat <<'LIST'
cmake            command cmake 3.22
ninja-build      command ninja
git              command git
lld              command ld.lld
python3          command python3
python3-pip      pip
libabsl-dev      header absl/status/statusor.h
libgtest-dev     header gtest/gtest.h
libgmock-dev     header gmock/gmock.h
libbenchmark-dev header benchmark/benchmark.h
nlohmann-json3-dev header nlohmann/json.hpp
libxxhash-dev    header xxhash.h
libsodium-dev    header sodium.h
procps           command pkill
LIST
  if command -v dpkg >/dev/null; then  # for make package
    echo "dpkg-dev command dpkg-shlibdeps"
    echo "file command file"
  fi
  if [[ ${1:-} == lint ]]; then echo "clang-tidy-14 command clang-tidy-14"; fi
  if [[ ${1:-} =~ ^(lint|format|ci)$ ]]; then echo "clang-format-14 command clang-format-14"; fi
  if [[ ${1:-} == ci ]]; then cat <<'LIST'
ccache           command ccache
openmpi-bin      command mpirun.openmpi
mpich            command mpiexec.hydra
slurmctld        command slurmctld
slurmd           command slurmd
iproute2         command tc
python3-venv     module ensurepip
LIST
  fi
}

# Prints how a system differs from Debian 12; docs/dependencies.md describes how this is known.
differences() {
  local release=${OS_RELEASE:-/etc/os-release} system=unknown
  [[ ! -r $release ]] || system=$(. "$release" && echo "${ID:-unknown} ${VERSION_ID:-}")
  case $system in
    "debian 12") ;;
    "ubuntu 22.04") cat <<'TEXT'
Ubuntu 22.04 has g++ 11, CMake 3.22, Abseil 20210324 and Python 3.10: enough to build and test.
  For bench/run with PyTorch python3.11: PYTHON=python3.11 bench/peers/setup.sh.
  Packages are in "universe": add-apt-repository universe.
TEXT
      ;;
    "ubuntu 24.04") cat <<'TEXT'
Ubuntu 24.04 has g++ 13, CMake 3.28, Abseil 20220623 and Python 3.12: enough.
  Its clang-format is 18; sources are formatted with clang-format-14, which is a package, too.
  Packages are in "universe": add-apt-repository universe.
TEXT
      ;;
    *) echo "This is '$system', whose packages are not known; these are the names of Debian 12's." ;;
  esac
}

remedy() {
  case $1 in
    cmake) echo "python3 -m pip install cmake, in a virtual environment, or apt.kitware.com" ;;
    g++) echo "apt-get install g++-12 (for old Ubuntu in ppa:ubuntu-toolchain-r/test), CXX=g++-12" ;;
  esac
}

# Prints the programs that are too old, with remedies.
too_old() {
  local package kind what least found
  while read -r package kind what least; do
    [[ -n $least ]] && command -v "$what" >/dev/null || continue
    found=$("$what" --version | grep -oE '[0-9]+([.][0-9]+)+' | head -n 1)
    [[ $(printf '%s\n' "$least" "$found" | sort -V | head -n 1) != "$least" ]] || continue
    echo "$what is $found, $least or newer is needed: $(remedy "$what")"
  done < <(requirements "$@")
}

# Prints a python3 that has pip: the user's, or otherwise the system's.
python_with_pip() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then echo "$python"; return; fi
  done
  return 1
}

is_there() {  # kind, what
  case $1 in
    command) command -v "$2" >/dev/null ;;
    header) ${CXX:-g++} -std=c++20 -E -x c++ - >/dev/null 2>&1 <<<"#include <$2>" ;;
    module) python3 -c "import $2" 2>/dev/null ;;
    system-module) /usr/bin/python3 -c "import $2" 2>/dev/null ;;
    pip) [[ -n ${TESSERA_TORCH:-} || -d $torch ]] || python_with_pip >/dev/null ;;
  esac
}

install_packages() {
  local package kind what least missing=()
  while read -r package kind what least; do
    is_there "$kind" "$what" || missing+=("$package")
  done < <(requirements "$@")
  [[ ${#missing[@]} -gt 0 ]] || return 0
  differences >&2
  if ! command -v apt-get >/dev/null; then
    die "missing, by the names of Debian's packages: ${missing[*]}; install them and run this again"
  elif [[ $(id -u) != 0 ]]; then
    die "missing; run as root: apt-get install ${missing[*]}"
  fi
  say "installing packages: ${missing[*]}"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends "${missing[@]}" >/dev/null
}

# Only include/ and the libraries of the CPU half are unpacked: half a gigabyte instead of two. All
# libraries are put into one folder, where LibTorch's own run path finds them.
unpack() {  # half (cpu, cuda), python, folder with wheels, destination
  "$2" - "$1" "$3" "$4" <<'PYTHON'
import fnmatch, pathlib, shutil, sys, zipfile
half, wheels, destination = sys.argv[1], *map(pathlib.Path, sys.argv[2:])
libraries = {
    "cpu": ["torch/lib/lib%s" % name for name in
            ("c10.so", "torch_cpu.so", "shm.so", "gomp.so.*")] +
           ["nvidia/*/lib/libcudart.so.*", "nvidia/*/lib/libcupti.so.*"],
    "cuda": ["torch/lib/lib%s.so" % name for name in
             ("torch_cuda", "c10_cuda", "torch_cuda_linalg", "caffe2_nvrtc", "torch_nvshmem")] +
            ["nvidia/*/lib/*.so.*"]}[half]
# Already present, or not needed by LibTorch.
without = ["libcudart.*", "libcupti.*", "*.alt.so.*", "libcusolverMg.*", "libnvblas.*",
           "libcufftw.*", "libcheckpoint.*", "libnvperf*", "libpcsampling*"]
for wheel in wheels.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            base = pathlib.PurePath(name).name
            if half == "cuda" and any(fnmatch.fnmatch(base, pattern) for pattern in without):
                continue
            if name.startswith("torch/include/") and not name.endswith("/"):
                if half == "cuda":
                    continue
                target = destination / name[len("torch/"):]
            elif any(fnmatch.fnmatch(name, pattern) for pattern in libraries):
                target = destination / "lib" / base
            elif ".dist-info/licenses/" in name and not name.endswith("/"):
                target = destination / "licenses" / name.replace(".dist-info/licenses", "")
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
PYTHON
}

download() {  # python, folder for the wheels, files with requirements...
  local python=$1 wheels=$2 file resume=() requirements=()
  shift 2
  for file in "$@"; do requirements+=(-r "$here/$file"); done
  mkdir -p "$wheels"
  # After an interruption pip keeps complete files; a newer pip also continues partial ones.
  if "$python" -m pip download --help | grep -q -- --resume-retries; then
    resume=(--resume-retries 20)
  fi
  # pip checks every hash, also of files left here by an interrupted run. The wheels are only
  # unpacked, so they need not be for this Python.
  "$python" -m pip download --disable-pip-version-check --no-cache-dir --no-deps "${resume[@]}" \
    --require-hashes --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 \
    --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_25_x86_64 --platform manylinux_2_18_x86_64 \
    --platform manylinux2014_x86_64 --dest "$wheels" "${requirements[@]}" >&2
}

fetch_torch() {
  local wheels=$cache/wheels-$version partial=$torch.partial python
  python=$(python_with_pip) || die "no python3 with pip"
  [[ -w $cache ]] ||
    die "cannot write to $cache; set XDG_CACHE_HOME, or TESSERA_TORCH to the folder of a LibTorch"
  say "fetching LibTorch $version into $cache (about 550 MB)"
  download "$python" "$wheels" "wheels-$version.txt" ||
    die "pip could not download LibTorch; set TESSERA_TORCH to the folder of one that is there"
  say "unpacking into $torch"
  rm -rf "$partial"
  mkdir -p "$partial"
  unpack cpu "$python" "$wheels" "$partial"
  mv "$partial" "$torch"  # one rename: a folder of this name is complete
  [[ -n $cuda ]] || rm -rf "$wheels"
}

fetch_cuda() {
  local wheels=$cache/wheels-$version partial=$torch-cuda.partial python folder
  python=$(python_with_pip) || die "no python3 with pip"
  say "fetching the CUDA half of LibTorch $version and NVIDIA's libraries into $cache" \
    "(2.5 GB, unpacked 2.9 GB)"
  # LibTorch's wheel has both halves. fetch_torch deletes it, unless this run also fetches the CUDA
  # half.
  download "$python" "$wheels" "wheels-$version.txt" "cuda-wheels-$version.txt"
  say "unpacking into $torch"
  rm -rf "$partial"
  mkdir -p "$partial"
  unpack cuda "$python" "$wheels" "$partial"
  mv "$partial/lib/libtorch_cuda.so" "$partial"
  for folder in lib licenses; do
    [[ ! -d $partial/$folder ]] || cp -rlf "$partial/$folder" "$torch"
  done
  mv "$partial/libtorch_cuda.so" "$torch/lib"  # last: if it exists, everything does
  rm -rf "$partial" "$wheels"
}

# Fetches only the headers of both MPIs, because installing Debian's development packages would also
# change the system's mpicc and mpirun.
fetch_mpi() {
  local headers=$cache/mpi-headers partial=$cache/mpi-headers.partial package
  command -v apt-get >/dev/null || die "--mpi needs apt-get; install the headers of the MPIs"
  say "fetching the headers of Open MPI and MPICH into $headers"
  rm -rf "$partial"
  mkdir -p "$partial"
  (cd "$partial" && apt-get -qq download libopenmpi-dev libmpich-dev 2>/dev/null) ||
    die "apt-get download libopenmpi-dev libmpich-dev failed; run apt-get update as root first"
  for package in "$partial"/*.deb; do dpkg --fsys-tarfile "$package" |
    tar -x -C "$partial" --wildcards --exclude '*/fortran/*' '*.h'; done
  rm -f "$partial"/*.deb
  mv "$partial" "$headers"
}

cuda= mpi=
case ${1:-} in
  '' | path | requirements | format | lint | docs) ;;
  ci) mpi=yes ;;
  --cuda) cuda=yes ;;
  --mpi) mpi=yes ;;
  *) die "got '$1', expected path, requirements, format, lint, docs, ci, --cuda, --mpi or nothing" ;;
esac
if [[ ${1:-} == path ]]; then echo "$torch"; exit; fi
if [[ ${1:-} == requirements ]]; then
  echo "Packages: $(requirements | cut -d ' ' -f 1 | xargs)"
  differences
  too_old
  exit
fi
if [[ ${1:-} == docs ]]; then install_packages docs; exit; fi
[[ $(uname -sm) == "Linux x86_64" ]] || die "LibTorch is pinned for Linux on x86_64, this is $(uname -sm)"

if [[ -n ${TESSERA_TORCH:-} ]]; then
  [[ -e $torch/lib/libtorch_cpu.so && -d $torch/include/ATen ]] ||
    die "TESSERA_TORCH=$torch: no lib/libtorch_cpu.so and include/ATen there"
  [[ -z $cuda || -e $torch/lib/libtorch_cuda.so ]] ||
    die "TESSERA_TORCH=$torch: no lib/libtorch_cuda.so there; use a LibTorch built for CUDA"
elif [[ ! -e $here/wheels-$version.txt ]]; then
  die "TORCH=$version is not pinned; there are: $(cd "$here" && ls wheels-*.txt | tr '\n' ' ')"
fi

[[ -z ${CXX:-} ]] || $CXX --version >/dev/null 2>&1 || die "CXX=$CXX: this compiler does not run"
# If two clones start at once, the second waits and finds everything done. A cache that cannot be
# written may be complete.
if mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]]; then
  exec 9>"$cache/lock"
  flock -n 9 || { say "waiting for another bootstrap"; flock 9; }
fi
install_packages "$@"
old=$(too_old "$@")
[[ -z $old ]] || { differences >&2; die "$old"; }
[[ -d $torch ]] || fetch_torch
[[ -z $cuda || -e $torch/lib/libtorch_cuda.so ]] || fetch_cuda
[[ -z $mpi || -d $cache/mpi-headers ]] || fetch_mpi
say "LibTorch: $torch"
