#!/usr/bin/env bash
# Trains a small gpt on two ranks without a communication hook and with all_reduce, noop and
# powersgd, and compares held-out losses, parameters, and the bytes of gradients in the traces.
#
#   comm_hook.sh <folder of the programs> <text>
set -euo pipefail
bin=$1 text=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

gpt() { # <name> <strategy> <hook and its flags>...
  local name=$1 strategy=$2
  shift 2
  "$bin/tessera-run" --standalone --nproc-per-node 2 -- "$bin/gpt" --strategy="$strategy" --data="$text" \
    --layers=2 --heads=2 --width=64 --context=32 --batch=8 --steps=60 --warmup=10 --lr=2e-3 --eval_batches=16 \
    --sample_bytes=0 --log_every=60 --trace="$scratch/$name.trace" "$@" >"$scratch/$name.out"
}

gpt plain ddp --comm_hook=none
gpt all_reduce ddp --comm_hook=all_reduce
gpt powersgd ddp --comm_hook=powersgd --powersgd_rank=4
gpt sharded zero1 --comm_hook=powersgd --powersgd_rank=4
gpt noop zero1 --comm_hook=noop --steps=2

python3 -B - "$scratch" <<'PYTHON'
import json, re, sys

folder = sys.argv[1]


def read(name):
    text = open(f"{folder}/{name}.out").read()
    loss = float(re.search(r"held-out loss +([0-9.]+)", text)[1])
    parameters = re.search(r"parameters +([0-9a-f]{16})", text)
    return loss, parameters and parameters[1]


def sent(name):
    """Bytes of the first and of the last step, of rank 0's gradients."""
    events = json.load(open(f"{folder}/{name}.trace"))
    events = events["traceEvents"] if isinstance(events, dict) else events
    spans = [e for e in events if e.get("pid") == 0 and e.get("name", "").startswith("bucket")
             and "bytes" in e.get("args", {}) and e.get("cat", "reduce") == "reduce"]
    buckets = len({e["name"] for e in spans})
    bytes_ = [e["args"]["bytes"] for e in sorted(spans, key=lambda e: e["ts"])]
    return sum(bytes_[:buckets]), sum(bytes_[-buckets:])


plain, hash_plain = read("plain")
loss, hash_ = read("powersgd")
first, last = sent("powersgd")
print(f"held-out loss {plain} plain, {loss} by powersgd; bytes per step {first} before, {last} after")
assert read("all_reduce") == (plain, hash_plain)
assert read("sharded") == (loss, hash_), "zero1 differs from ddp"
assert hash_ != hash_plain, "nothing was compressed"
assert abs(loss - plain) <= 0.02 * plain
assert first == sent("plain")[0] and 0 < last <= first / 4
assert sent("noop") == (0, 0)
PYTHON
