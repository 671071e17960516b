#!/usr/bin/env bash
# Runs the tests that need PyPI's safetensors in a virtual environment of its own, made at the first
# run in the cache outside the tree. Skipped, with a message, if it cannot be made.
#   safetensors_package.sh <checkpoint_test>
set -euo pipefail
version=0.8.0
environment=${XDG_CACHE_HOME:-$HOME/.cache}/tessera/safetensors-$version
python=$environment/bin/python

if ! "$python" -c 'import safetensors' 2>/dev/null; then
  mkdir -p "$environment"
  if ! { python3 -m venv "$environment" && "$python" -m pip --quiet --disable-pip-version-check install \
    --timeout 10 --retries 1 "safetensors==$version"; }; then
    rm -rf "$environment"
    echo "NOT tested: Python's safetensors $version could not be installed in $environment"
    exit 77
  fi
fi
TESSERA_SAFETENSORS_PYTHON=$python exec "$1" --gtest_filter='PythonTest.*'
