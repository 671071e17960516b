#!/usr/bin/env bash
# Trains the digits programs on three ranks: on files in MNIST's format (a stripe for each digit),
# and on a broken one.
#
#   digits_files.sh <folder of the programs>
set -euo pipefail
bin=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

python3 -B - "$scratch" <<'PYTHON'
import random, struct, sys

random.seed(1)
for name, count in ("train", 300), ("t10k", 100):
    labels = bytes(i % 10 for i in range(count))
    images = bytearray()
    for label in labels:
        for row in range(10):
            images += bytes(random.randrange(60) + (180 if row == label else 0) for _ in range(10))
    with open(f"{sys.argv[1]}/{name}-images-idx3-ubyte", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, count, 10, 10) + images)
    with open(f"{sys.argv[1]}/{name}-labels-idx1-ubyte", "wb") as file:
        file.write(struct.pack(">II", 0x801, count) + labels)
PYTHON

run() { # <program> <arguments>...
  "$bin/tessera-run" --standalone --nproc-per-node 3 -- "$bin/$1" --data="$scratch" "${@:2}"
}

for program in digits_by_hand digits_ddp digits; do
  run $program --epochs=4 >"$scratch/$program"
  cat "$scratch/$program"
  grep -qE 'world 3: loss 0[.][0-9]+, accuracy (9[0-9]|100)[.][0-9] % of 100' "$scratch/$program"
done

mv "$scratch/t10k-labels-idx1-ubyte" "$scratch/t10k-labels-idx1-ubyte.gz"
for program in digits_by_hand digits_ddp digits; do
  if run $program >"$scratch/out" 2>&1; then
    echo "digits_files.sh: $program trained without labels" >&2
    exit 1
  fi
  grep -q "t10k-labels-idx1-ubyte': got only .*t10k-labels-idx1-ubyte.gz', expected it unpacked; gunzip -k" "$scratch/out"
done
