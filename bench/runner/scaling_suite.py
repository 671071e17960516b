"""Ours on 1 to 8 ranks of one host: how the cost of a rank depends on their number."""

from __future__ import annotations

import contextlib
import os
import statistics

from . import collectives_suite, registry
from .bench import Bench
from .entry import Entry
from .workers import Workers, check_numbers
from .findings import Call, Pace, Scale
from .model import MODELS
from .spread import Timing
from .turns import turns

_OPS = ("all_reduce", "all_gather", "reduce_scatter")
_SIZE_BYTES = 64 << 20  # larger than the last cache even on two ranks, because the model is about memory
_WORLDS = (1, 2, 3, 4, 8)
_WARM_UP_STEPS = 3  # memory has settled by then
_STEPS = 2


def run(bench: Bench) -> None:
    """CPU time per rank and step of model A, and collectives of 64 MiB, by number of ranks.

    Each round measures everything once, and the pace of the memory before and after each collective,
    because on a shared machine it changes by a factor of two within seconds.
    """
    for world in (2, 4) if bench.quick else _WORLDS:
        _run_world(bench, world)


def _run_world(bench: Bench, world: int) -> None:
    entries = bench.chosen(registry.scaling(bench.programs, bench.text, bench.quick))
    ours = [c for c in bench.chosen(registry.collectives(bench.programs)) if not c.family]
    log = f"scaling-{world}"
    with contextlib.ExitStack() as started:  # kills all remaining ranks after an error, too

        def start(entry: Entry, name: str, ranks: int) -> Workers:
            return started.enter_context(bench.start(entry, name, ranks))

        trainers: dict[str, Workers] = {}
        movers: list[Workers] = []
        for entry in ours if world > 1 else []:
            movers = [start(entry, f"{log}-pace", _cores()), start(entry, log, world)]
        for workers in movers:
            workers.wait("ready", bench.start_timeout_s)
        for entry in entries:
            trainers[entry.name] = start(entry, log, world)
            _warm_up(bench, trainers[entry.name], world)
        pace_of_round = -1
        for round_, entry in turns(entries, bench.blocks):
            if movers and round_ != pace_of_round:
                pace_of_round = round_
                _collectives(bench, movers[0], movers[1], round_)
            _steps(bench, trainers[entry.name], world, round_)
        for workers in (*movers, *trainers.values()):
            bench.leave(workers)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _warm_up(bench: Bench, workers: Workers, world: int) -> None:
    workers.wait("idle", bench.start_timeout_s)
    ready = workers.wait("ready", bench.start_timeout_s)
    workers.ask(f"steps {_WARM_UP_STEPS}", "steps", _timeout_s(world))
    scale = Scale(int(ready[0].get("parameters", 0)))
    bench.findings.scaling.setdefault(_strategy(workers.entry), {})[world] = scale


def _strategy(entry: Entry) -> str:
    return entry.name.split()[-1]


def _timeout_s(world: int) -> float:
    return 60.0 + world * _WARM_UP_STEPS * MODELS["A"].step_timeout_s


def _steps(bench: Bench, workers: Workers, world: int, round_: int) -> None:
    answers = workers.ask(f"steps {_STEPS}", "steps", _timeout_s(world))
    check_numbers(workers, answers, "ms", _STEPS)
    by_rank = [float(answer["cpu_ms"]) / _STEPS for answer in answers]
    cpu_ms = statistics.fmean(by_rank)
    scale = bench.findings.scaling[_strategy(workers.entry)][world]
    scale.cpu_ms[round_] = Timing(cpu_ms, min(by_rank))
    bench.journal.write({"suite": "scaling", "entry": workers.entry.name, "world": world,
                         "round": round_, "cpu_ms_per_step": cpu_ms})
    bench.say(f"scaling, {world} ranks, round {round_}: {workers.entry.name} {cpu_ms:.1f} ms CPU "
              "per rank and step")


def _collectives(bench: Bench, pacer: Workers, workers: Workers, round_: int) -> None:
    paces = [_pace(bench, pacer, round_)]
    for op in _OPS:
        call = Call(workers.world, op, _SIZE_BYTES, "f32")
        timing = collectives_suite.block(bench, workers, workers.entry, call, round_)
        bench.findings.scaling_calls.setdefault(call, {})[round_] = timing
        paces.append(_pace(bench, pacer, round_))
        bench.findings.call_paces.setdefault(call, {})[round_] = Pace.mean(paces[-2:])
    bench.findings.world_paces.setdefault(workers.world, {})[round_] = Pace.mean(paces)


def _pace(bench: Bench, workers: Workers, round_: int) -> Pace:
    read_s, copy_s = (
        collectives_suite.block(bench, workers, workers.entry, call, round_).median
        * 1e-6 / _SIZE_BYTES
        for call in (Call(workers.world, op, _SIZE_BYTES, "f32") for op in ("read", "copy"))
    )
    bench.say(f"scaling, round {round_}: a core reads {1e-9 / read_s:.1f} GB/s, copies "
              f"{1e-9 / copy_s:.1f} GB/s")
    return Pace(read_s, max(0.0, copy_s - read_s))
