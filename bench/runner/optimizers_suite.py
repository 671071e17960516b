"""Times of updates: ours, LibTorch's and what memory allows, in turn."""

from __future__ import annotations

import statistics

from . import registry
from .bench import Bench, noise_record
from .disturbance import Watch
from .entry import Entry, Role
from .failure import BenchFailure
from .spread import Timing
from .turns import turns
from .workers import Workers, check_numbers

ALGORITHMS = ("adamw", "adam", "sgd", "lion", "adagrad", "rmsprop")
# Of fp32 arrays: read (values, gradient, states), written (all but the gradient).
ARRAYS = {"adamw": (4, 3), "adam": (4, 3), "sgd": (3, 2), "lion": (3, 2), "adagrad": (3, 2), "rmsprop": (3, 2)}

ELEMENTS = 16 << 20  # 64 MiB per array: beyond every cache
_QUICK_ELEMENTS = 1 << 20
_UPDATES = 8
_TIMEOUT_S = 120.0
_TOLERANCE = 1e-3  # of how far values have moved


def run(bench: Bench) -> None:
    """Every algorithm by all entries, in turn, one process of one thread each."""
    entries = bench.chosen(registry.optimizers(bench.programs))
    elements = _QUICK_ELEMENTS if bench.quick else ELEMENTS
    worker_sets: dict[str, Workers] = {}
    try:
        for entry in entries:
            worker_sets[entry.name] = bench.start(entry, "optimizers", 1)
            worker_sets[entry.name].wait("ready", bench.start_timeout_s)
        for algorithm in ALGORITHMS:
            _run_algorithm(bench, worker_sets, entries, algorithm, elements)
        for workers in worker_sets.values():
            bench.leave(workers)
    finally:
        for workers in worker_sets.values():
            workers.kill()


def _run_algorithm(bench: Bench, worker_sets: dict[str, Workers], entries: list[Entry], algorithm: str,
                   elements: int) -> None:
    found = bench.findings.optimizers.setdefault(algorithm, {})
    moved: dict[str, float] = {}
    for round_, entry in turns(entries, bench.blocks):
        workers = worker_sets[entry.name]
        watch = Watch(workers.pids)
        answers = workers.ask(f"run {algorithm} {elements} {_UPDATES}", "run", _TIMEOUT_S)
        seen = watch.stop()
        times_us = check_numbers(workers, answers, "us", _UPDATES)[0]
        timing = Timing(statistics.median(times_us) / 1e3, min(times_us) / 1e3)
        found.setdefault(entry.name, {})[round_] = timing
        if entry.role is not Role.FLOOR:
            moved[entry.name] = float(answers[0].get("moved", float("nan")))
        bench.journal.write(
            {"suite": "optimizers", "entry": entry.name, "algorithm": algorithm, "elements": elements,
             "round": round_, "updates": _UPDATES, "median_ms": timing.median, "min_ms": timing.minimum}
            | noise_record(seen)
        )
        reason = bench.limits.broken_by(seen, float("inf"))
        if reason is not None:
            bench.disturbed(f"optimizers, {algorithm}, {entry.name}, round {round_}", reason, False, seen.busiest)
        # All have made as many updates once a round is over.
        if len(moved) == sum(e.role is not Role.FLOOR for e in entries):
            _compare(algorithm, round_, moved)
            moved = {}
    shown = ", ".join(f"{name} {statistics.median(t.median for t in rounds.values()):.2f} ms"
                      for name, rounds in found.items())
    bench.say(f"optimizers, {algorithm}: {shown}")


def _compare(algorithm: str, round_: int, moved: dict[str, float]) -> None:
    """Fails the run where entries did not do the same."""
    (first, expected), *others = moved.items()
    for name, value in others:
        if not abs(value - expected) <= _TOLERANCE * abs(expected):
            raise BenchFailure(f"optimizers, {algorithm}: {name} does something else than {first}: values have "
                               f"moved by {value:g} after round {round_}, not by {expected:g}")
