#!/usr/bin/env bash
# Creates the virtual environment of the PyTorch peers, in the cache outside the tree, and prints
# the path of its python. If it exists, only prints. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/requirements.txt
version=$(sed -n 's/^torch==//p' "$requirements")
environment=${XDG_CACHE_HOME:-$HOME/.cache}/tessera/peers-$version
python=$environment/bin/python
installed=$environment/requirements.txt  # a copy, written last: marks a complete installation

say() { echo "setup: $*" >&2; }
die() { say "$@"; exit 1; }
usage='usage: setup.sh [path]
setup.sh makes the Python environment of the PyTorch peers (several GB) and prints its python.

  bench/peers/setup.sh         install what is missing
  bench/peers/setup.sh path    only print where it is or would be

PYTHON=python3, the interpreter to start from; XDG_CACHE_HOME=~/.cache, under which it lies'

case "$*" in
  --help | -h) echo "$usage"; exit ;;
  path) echo "$python"; exit ;;
  "") ;;
  *) say "argument: got '$*', expected nothing or 'path'; $0 --help says more"; exit 64 ;;
esac

is_whole() { [[ -x $python ]] && cmp -s "$requirements" "$installed"; }

if ! is_whole; then
  mkdir -p "$environment" ||
    die "cannot make $environment; set XDG_CACHE_HOME to a folder you may write"
  exec {lock}>"$environment.lock"
  flock "$lock"  # of two runs at once, the second waits here and then finds nothing left to do
fi

if ! is_whole; then
  start=${PYTHON:-python3}
  "$start" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    die "$start: got '$("$start" --version 2>&1)', PyTorch $version needs Python 3.11 or newer;" \
      "install one and run PYTHON=<it> $0"
  rm -f "$installed"
  "$start" -m venv "$environment" >&2 ||
    die "$start cannot make a virtual environment in $environment;" \
      "install Debian's python3-venv, then run this again"
  say "installing $(grep -c == "$requirements") packages into $environment (several GB, minutes)"
  "$python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements" >&2 ||
    die "pip could not install $requirements into $environment (reason above);" \
      "check the network and the free space (df -h $environment), then run this again"
  again="remove $environment and run this again"
  look='import torch; print(torch.__version__.split("+")[0], torch.distributed.is_gloo_available())'
  found=$("$python" -c "$look") || die "torch cannot be imported (reason above); $again"
  [[ $found == "$version True" ]] ||
    die "torch: got version and Gloo '$found', expected '$version True'; $again"
  cp "$requirements" "$installed"
fi
echo "$python"
