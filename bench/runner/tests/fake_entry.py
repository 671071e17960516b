"""Implements the entries' protocol without computing anything; misbehaves according to FAKE_MODE.

FAKE_MODE: die, signal, hang, garbage, other_event, short, not_a_number, other_loss, mute, stay, fail_late.
FAKE_RANK: the rank that misbehaves (default 0).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time


def emit(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def misbehave(mode: str) -> None:
    """Misbehaves instead of answering."""
    if mode == "die":
        print("fake: out of luck", file=sys.stderr, flush=True)
        sys.exit(3)
    if mode == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    if mode == "garbage":
        print("Segmentation fault, says nobody", flush=True)
    if mode == "other_event":
        emit(event="surprise")


def step_answer(first: int, steps: int, mode: str) -> dict[str, object]:
    """Times that depend on the entry's speed, and a loss that depends only on the step."""
    speed = float(os.environ.get("FAKE_MS", "1"))
    factor = 1.01 if mode == "other_loss" else 1.0
    losses: list[float] = [factor * 5.0 / (1 + 0.1 * (first + i)) for i in range(steps)]
    times = [speed] * (steps - 1 if mode == "short" else steps)
    if mode == "not_a_number":
        times[0] = float("nan")
    return {"event": "steps", "ms": times, "loss": losses, "cpu_ms": speed * steps,
            "minor_faults": 7 * steps, "private_kib": 3000}


def trace(steps: int) -> str:
    """Steps of 10 ms: forward 3 with a gather of 1, backward 4 with a reduction of 2 (rank 0) or
    1 (others), vote 0.5, update 1, updates 0.5; the rest is 1."""
    events: list[dict[str, object]] = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        for step in range(steps):
            reduction = 2.0 if rank == 0 else 1.0
            for track, name, begin, length in (
                    ("compute", "forward", 0, 3), ("gather", "a", 1, 1), ("gather", "a", 1, 0.5),
                    ("compute", "backward", 3, 4), ("reduce", "a", 7 - reduction, reduction),
                    ("vote", "vote", 7, 0.5), ("optimizer", "update", 7.5, 1),
                    ("gather", "a", 8.5, 0.5)):
                events.append({"ph": "X", "cat": track, "name": name, "pid": rank, "tid": 1,
                               "ts": (10 * step + begin) * 1e3, "dur": length * 1e3})
        events.append({"ph": "X", "cat": "compute", "name": "end", "pid": rank, "tid": 1,
                       "ts": 10e3 * steps, "dur": 0})
    return json.dumps({"traceEvents": events})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--strategy")
    parser.add_argument("--text")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--trace")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--by", default="tessera")
    arguments = parser.parse_args()
    mine = int(os.environ["RANK"]) == int(os.environ.get("FAKE_RANK", "0"))
    mode = os.environ.get("FAKE_MODE", "") if mine else ""
    if mode == "mute":
        misbehave("hang")
    if arguments.model:
        emit(event="idle", private_kib=1000)
        emit(event="ready", parameters=1_000_000)
    else:
        emit(event="ready")
    if arguments.steps:
        emit(**step_answer(0, arguments.steps, mode))
        return
    done = 0
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            if arguments.trace and os.environ["RANK"] == "0" and arguments.strategy != "local":
                with open(arguments.trace, "w") as file:
                    file.write(trace(done))
            if mode == "stay":
                misbehave("hang")
            sys.exit(9 if mode == "fail_late" else 0)
        misbehave(mode)
        depth = int(arguments.model[5:]) if (arguments.model or "").startswith("deep-") else 0
        if depth > int(os.environ.get("FAKE_LAYERS", "20")):
            print("CUDA out of memory. Tried to allocate a lot", file=sys.stderr, flush=True)
            sys.exit(1)
        if words[0] == "checkpoint":
            emit(event="checkpoint", ms={"write": 40.0, "copy": 5.0}.get(words[1], 50.0), bytes=1 << 20,
                 grown_kib=1536)
            continue
        if words == ["counts"]:
            emit(event="counts", kernels=100, copies=3, fills=2)
            done += 1
        elif words[0] == "steps" and arguments.device == "cuda":
            answer = step_answer(done, int(words[1]), mode)
            ours = "--bf16" in sys.argv and arguments.strategy != "local"
            emit(**answer, device_bytes=1010, device_peak_bytes=2000, formula_bytes=1000 if ours else -1)
            done += int(words[1])
        elif words[0] == "steps":
            emit(**step_answer(done, int(words[1]), mode))
            done += int(words[1])
        else:
            size_us = 1.0 + int(words[2]) / 1e4
            if arguments.by == "libtorch":
                size_us *= 3
            if words[1] == "muon":
                size_us = 2e4 if arguments.strategy != "zero2" else 1e4 + 1e3 * int(os.environ["RANK"])
            # Several entries are one program, so that one may do something else.
            moved = 1.04 if arguments.by == "tessera8bit" else 1.0
            if os.environ.get("FAKE_MOVES", "none") in (os.environ.get("MALLOC_MMAP_MAX_", ""), arguments.by,
                                                        arguments.strategy):
                moved = 2.0
            times = [size_us * float(os.environ.get("FAKE_MS", "1"))] * int(words[3])
            emit(event="run", us=times, transforms_us=times, moved=moved)


if __name__ == "__main__":
    main()
