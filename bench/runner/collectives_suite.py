"""Times of collectives, ours and the peer's in turn."""

from __future__ import annotations

import statistics

from . import registry
from .bench import Bench, noise_record
from .entry import Entry, Role
from .workers import Workers, check_numbers
from .disturbance import Watch
from .findings import Call
from .spread import Timing
from .turns import turns

_OPS = ("all_reduce", "all_gather", "reduce_scatter")
_KIB = 1 << 10
_MIB = 1 << 20

# Calls per block of a peer; ours are faster and make more.
_CALLS = {0: 500, 64 * _KIB: 100, _MIB: 50, 16 * _MIB: 10, 64 * _MIB: 4}
_OUR_FACTOR = 5
_CALL_TIMEOUT_S = 2.0


def calls(worlds: tuple[int, ...], quick: bool) -> list[Call]:
    """The measured calls, in order."""
    sizes = (64 * _KIB, 16 * _MIB) if quick else tuple(size for size in _CALLS if size)
    found = []
    for world in worlds:
        found.append(Call(world, "barrier", 0, "f32"))
        for dtype in ("f32",) if quick or world > 2 else ("f32", "bf16"):
            found += [Call(world, op, size, dtype) for op in _OPS for size in sizes]
    return found


def run(bench: Bench) -> None:
    """Runs every call with all entries in turn, on two and on four ranks."""
    worlds = (2,) if bench.quick else (2, 4)
    for world in worlds:
        _run_world(bench, world, calls((world,), bench.quick))


def _run_world(bench: Bench, world: int, wanted: list[Call]) -> None:
    entries = bench.chosen(registry.collectives(bench.programs))
    if bench.starts_anew:
        _run_anew(bench, world, wanted, entries)
        return
    worker_sets: dict[str, Workers] = {}
    try:
        for entry in entries:
            workers = bench.start(entry, f"collectives-{world}", world)
            worker_sets[entry.name] = workers
            workers.wait("ready", bench.start_timeout_s)
        for call in wanted:
            found = bench.findings.collectives.setdefault(call, {})
            for round_, entry in turns(entries, bench.blocks):
                timing = block(bench, worker_sets[entry.name], entry, call, round_)
                found.setdefault(entry.name, {})[round_] = timing
            medians = {
                name: statistics.median(t.median for t in rounds.values())
                for name, rounds in found.items()
            }
            shown = ", ".join(f"{name} {us:.1f} us" for name, us in medians.items())
            bench.say(f"collectives, {world} ranks, {call.op} {call.size_bytes} {call.dtype}: {shown}")
        for workers in worker_sets.values():
            bench.leave(workers)
    finally:
        for workers in worker_sets.values():
            workers.kill()


def _run_anew(bench: Bench, world: int, wanted: list[Call], entries: list[Entry]) -> None:
    for round_, entry in turns(entries, bench.blocks):
        with bench.start(entry, f"collectives-{world}", world) as workers:
            workers.wait("ready", bench.start_timeout_s)
            for call in wanted:
                found = bench.findings.collectives.setdefault(call, {})
                found.setdefault(entry.name, {})[round_] = block(bench, workers, entry, call, round_)
            bench.leave(workers)
        bench.say(f"collectives, {world} ranks, round {round_}: {entry.name}")


def block(bench: Bench, workers: Workers, entry: Entry, call: Call, round_: int) -> Timing:
    """Runs several calls in a row; in each the slowest rank counts."""
    count = _CALLS[call.size_bytes] * (_OUR_FACTOR if entry.role is Role.OURS else 1)
    watch = Watch(workers.pids)
    command = f"run {call.op} {call.size_bytes} {count}"
    command += f" {call.dtype}" if call.op != "barrier" else ""
    answers = workers.ask(command, "run", 30.0 + _CALL_TIMEOUT_S * (count + 3))
    columns = check_numbers(workers, answers, "us", count)
    times_us = [max(ranks) for ranks in zip(*columns, strict=True)]
    timing = Timing(statistics.median(times_us), min(times_us))
    bench.journal.write(
        {"suite": "collectives", "entry": entry.name, "world": call.world,
         "op": call.op, "bytes": call.size_bytes, "dtype": call.dtype, "round": round_,
         "calls": count, "median_us": timing.median, "min_us": timing.minimum}
        | noise_record(watch.stop())
    )
    return timing
