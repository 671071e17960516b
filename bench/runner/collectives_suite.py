"""Times of collectives, ours and the peer's in turn."""

from __future__ import annotations

import statistics

from . import roster
from .bench import Bench, noise_record
from .contestant import Contestant, Role
from .crew import Crew, check_numbers
from .disturbance import Watch
from .findings import Call
from .spread import Timing
from .turns import turns

_OPS = ("all_reduce", "all_gather", "reduce_scatter")
_KIB = 1 << 10
_MIB = 1 << 20

# Calls per block of a peer; ours, which are faster, make more.
_CALLS = {0: 500, 64 * _KIB: 100, _MIB: 50, 16 * _MIB: 10, 64 * _MIB: 4}
_OUR_FACTOR = 5
_CALL_TIMEOUT_S = 2.0


def calls(worlds: tuple[int, ...], quick: bool) -> list[Call]:
    """What is measured, in order."""
    sizes = (64 * _KIB, 16 * _MIB) if quick else tuple(size for size in _CALLS if size)
    found = []
    for world in worlds:
        found.append(Call(world, "barrier", 0, "f32"))
        for dtype in ("f32",) if quick or world > 2 else ("f32", "bf16"):
            found += [Call(world, op, size, dtype) for op in _OPS for size in sizes]
    return found


def run(bench: Bench) -> None:
    """Every call by all contestants, in turn, on two and on four ranks."""
    worlds = (2,) if bench.quick else (2, 4)
    for world in worlds:
        _run_world(bench, world, calls((world,), bench.quick))


def _run_world(bench: Bench, world: int, wanted: list[Call]) -> None:
    contestants = bench.chosen(roster.collectives(bench.programs))
    crews: dict[str, Crew] = {}
    try:
        for contestant in contestants:
            crew = bench.start(contestant, f"collectives-{world}", world)
            crews[contestant.name] = crew
            crew.wait("ready", bench.start_timeout_s)
        for call in wanted:
            found = bench.findings.collectives.setdefault(call, {})
            for round_, contestant in turns(contestants, bench.blocks):
                timing = block(bench, crews[contestant.name], contestant, call, round_)
                found.setdefault(contestant.name, {})[round_] = timing
            medians = {
                name: statistics.median(t.median for t in rounds.values())
                for name, rounds in found.items()
            }
            shown = ", ".join(f"{name} {us:.1f} us" for name, us in medians.items())
            bench.say(f"collectives, {world} ranks, {call.op} {call.size_bytes} {call.dtype}: {shown}")
        for crew in crews.values():
            bench.leave(crew)
    finally:
        for crew in crews.values():
            crew.kill()


def block(bench: Bench, crew: Crew, contestant: Contestant, call: Call, round_: int) -> Timing:
    """Several calls in a row; the slowest rank counts in each."""
    count = _CALLS[call.size_bytes] * (_OUR_FACTOR if contestant.role is Role.OURS else 1)
    watch = Watch(crew.pids)
    command = f"run {call.op} {call.size_bytes} {count}"
    command += f" {call.dtype}" if call.op != "barrier" else ""
    answers = crew.ask(command, "run", 30.0 + _CALL_TIMEOUT_S * (count + 3))
    columns = check_numbers(crew, answers, "us", count)
    times_us = [max(ranks) for ranks in zip(*columns, strict=True)]
    timing = Timing(statistics.median(times_us), min(times_us))
    bench.journal.write(
        {"suite": "collectives", "contestant": contestant.name, "world": call.world,
         "op": call.op, "bytes": call.size_bytes, "dtype": call.dtype, "round": round_,
         "calls": count, "median_us": timing.median, "min_us": timing.minimum}
        | noise_record(watch.stop())
    )
    return timing
