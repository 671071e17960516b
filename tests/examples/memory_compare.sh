#!/usr/bin/env bash
# Runs memory_compare on four ranks and checks its results: predicted bytes, a table, a chart.
#
#   memory_compare.sh <folder of the programs>
set -euo pipefail
bin=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

compare() { # <arguments>
  "$bin/tessera-run" --standalone --nproc-per-node 4 -- "$bin/memory_compare" --layers=3 --heads=2 --width=36 \
    --vocabulary=50 --sequence=16 "$@"
}

compare --svg="$scratch/memory.svg" --markdown="$scratch/memory.md" >"$scratch/out" || {
  cat "$scratch/out"
  exit 1
}
has() { # <what> <file>
  grep -qF -- "$1" "$2" || {
    echo "memory_compare.sh: no '$1' in $(basename "$2"):" >&2
    cat "$2" >&2
    exit 1
  }
}
has 'Persistent bytes are as predicted, to the byte, in every configuration.' "$scratch/out"
for row in ddp zero1 zero2 zero3 zero1:apart zero2:apart zero3:apart zero3:1:apart hybrid:2,2,2 hybrid:2,4,4 hybrid:1,2,4; do
  has "[0] $row " "$scratch/out"
  has "| $row | predicted |" "$scratch/memory.md"
  has ">$row</text>" "$scratch/memory.svg"
done
has 'measured, ranks 0-3' "$scratch/out"
has 'modelled, not measured' "$scratch/memory.svg"
if command -v xmllint >/dev/null; then xmllint --noout "$scratch/memory.svg"; fi

compare --optimizer=muon --configurations='ddp zero3' >"$scratch/out"
has 'fp32 parameters, Muon;' "$scratch/out"
has '[0] zero3              predicted, most: rank ' "$scratch/out"
has 'Persistent bytes are as predicted, to the byte, in every configuration.' "$scratch/out"

# All ranks refuse an impossible configuration by name and write no chart.
if compare --configurations='ddp hybrid:3,3,3' --svg="$scratch/refused.svg" >"$scratch/out" 2>&1; then
  echo 'memory_compare.sh: hybrid:3,3,3 was not refused on four ranks' >&2
  exit 1
fi
has 'degrees: got 3,3,3 on a world of 4' "$scratch/out"
[[ ! -e $scratch/refused.svg ]]
echo 'memory_compare works'
