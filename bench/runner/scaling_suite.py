"""Ours on 1 to 8 ranks of one host: what a rank costs when there are more of them."""

from __future__ import annotations

import statistics

from . import collectives_suite, roster
from .bench import Bench
from .contestant import Contestant
from .crew import check_numbers
from .findings import Call, Scale
from .model import MODELS
from .spread import Timing

_OPS = ("all_reduce", "all_gather", "reduce_scatter")
_SIZE_BYTES = 64 << 20  # beyond the last cache with two ranks, too: the model is one of memory
_WORLDS = (1, 2, 3, 4, 8)
_WARM_UP_STEPS = 3  # memory has settled after them
_BLOCKS = 3
_STEPS = 2


def run(bench: Bench) -> None:
    """CPU time per rank and step of model A, and collectives of 64 MiB, by number of ranks."""
    worlds = (2, 4) if bench.quick else _WORLDS
    contestants = bench.chosen(roster.scaling(bench.programs, bench.text, bench.quick))
    ours = [c for c in bench.chosen(roster.collectives(bench.programs)) if not c.family]
    for world in worlds:
        for contestant in contestants:
            _train(bench, contestant, world)
        if world > 1:
            for contestant in ours:
                _collectives(bench, contestant, world)


def _train(bench: Bench, contestant: Contestant, world: int) -> None:
    model = MODELS["A"]
    blocks = 1 if bench.quick else min(bench.blocks, _BLOCKS)
    timeout_s = 60.0 + world * _WARM_UP_STEPS * model.step_timeout_s
    cpu_ms, step_ms = [], []
    with bench.start(contestant, f"scaling-{world}", world) as crew:
        crew.wait("idle", bench.start_timeout_s)
        ready = crew.wait("ready", bench.start_timeout_s)
        crew.ask(f"steps {_WARM_UP_STEPS}", "steps", timeout_s)
        for _ in range(blocks):
            answers = crew.ask(f"steps {_STEPS}", "steps", timeout_s)
            columns = check_numbers(crew, answers, "ms", _STEPS)
            cpu_ms.append(statistics.fmean(float(a["cpu_ms"]) for a in answers) / _STEPS)
            step_ms.append(statistics.median(max(r) for r in zip(*columns, strict=True)))
        bench.leave(crew)
    found = Scale(min(cpu_ms), min(step_ms), int(ready[0].get("parameters", 0)))
    strategy = contestant.name.split()[-1]
    bench.findings.scaling.setdefault(strategy, {})[world] = found
    bench.journal.write(
        {"suite": "scaling", "contestant": contestant.name, "world": world,
         "cpu_ms_per_step": cpu_ms, "median_ms": step_ms}
    )
    bench.say(
        f"scaling, {world} ranks: {contestant.name} {found.cpu_ms:.1f} ms CPU per rank and step"
    )


def _collectives(bench: Bench, contestant: Contestant, world: int) -> None:
    with bench.start(contestant, f"scaling-{world}", world) as crew:
        crew.wait("ready", bench.start_timeout_s)
        for op in _OPS:
            call = Call(world, op, _SIZE_BYTES, "f32")
            blocks = [
                collectives_suite.block(bench, crew, contestant, call, round_)
                for round_ in range(1 if bench.quick else min(bench.blocks, _BLOCKS))
            ]
            best = min(blocks, key=lambda timing: timing.median)
            bench.findings.scaling_calls[call] = Timing(best.median, best.minimum)
        bench.leave(crew)
