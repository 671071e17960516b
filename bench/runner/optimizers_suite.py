"""Times of updates: ours, LibTorch's and the memory's lower bound, in turn."""

from __future__ import annotations

import statistics

from . import registry
from .bench import Bench, noise_record
from .disturbance import Disturbance, Watch
from .entry import Entry, Role
from .failure import BenchFailure
from .findings import Muon
from .spread import Timing, medians
from .turns import turns
from .workers import Answer, Workers, check_numbers

ALGORITHMS = ("adamw", "adam", "sgd", "lion", "adagrad", "rmsprop")
# The numbers of fp32 arrays: read (values, gradient, states), and written (all except the
# gradient).
ARRAYS = {"adamw": (4, 3), "adam": (4, 3), "sgd": (3, 2), "lion": (3, 2), "adagrad": (3, 2), "rmsprop": (3, 2)}

IN_EIGHT_BITS = ("adamw", "lion")

ELEMENTS = 16 << 20  # 64 MiB per array: larger than every cache
_QUICK_ELEMENTS = 1 << 20
_UPDATES = 8
_TIMEOUT_S = 120.0
# Relative to the distance that values have moved.
_TOLERANCE = 1e-3
_TOLERANCE_IN_EIGHT_BITS = 0.05

MUON_WIDTH = 384
_QUICK_MUON_WIDTH = 96
_MUON_UPDATES = 2


def run(bench: Bench) -> None:
    """Runs every algorithm with all entries in turn, one process with one thread each; then Muon."""
    elements = _QUICK_ELEMENTS if bench.quick else ELEMENTS
    with _Players(bench, registry.optimizers(bench.programs), "optimizers") as players:
        for algorithm in ALGORITHMS:
            _run_algorithm(bench, players, algorithm, elements)
    with _Players(bench, registry.muon(bench.programs), "muon") as players:
        _run_muon(bench, players, _QUICK_MUON_WIDTH if bench.quick else MUON_WIDTH)


class _Players:
    """The chosen entries, running. A context manager: leaving it ends them all."""

    def __init__(self, bench: Bench, entries: list[Entry], suite: str) -> None:
        self.bench, self.suite = bench, suite
        self.entries = bench.chosen(entries)
        self.workers: dict[str, Workers] = {}

    def __enter__(self) -> _Players:
        try:
            for entry in self.entries:
                self.workers[entry.name] = self.bench.start(entry, self.suite, entry.ranks or 1)
                self.workers[entry.name].wait("ready", self.bench.start_timeout_s)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            for workers in self.workers.values() if kind is None else ():
                self.bench.leave(workers)
        finally:
            self._kill()

    def _kill(self) -> None:
        for workers in self.workers.values():
            workers.kill()


def _run_algorithm(bench: Bench, players: _Players, algorithm: str, elements: int) -> None:
    found = bench.findings.optimizers.setdefault(algorithm, {})
    entries = [e for e in players.entries if e.name != registry.EIGHT_BITS or algorithm in IN_EIGHT_BITS]
    moved: dict[str, float] = {}
    for round_, entry in turns(entries, bench.blocks):
        workers = players.workers[entry.name]
        watch = Watch(workers.pids)
        answers = workers.ask(f"run {algorithm} {elements} {_UPDATES}", "run", _TIMEOUT_S)
        seen = watch.stop()
        times_us = check_numbers(workers, answers, "us", _UPDATES)[0]
        timing = _timing(times_us)
        found.setdefault(entry.name, {})[round_] = timing
        bench.journal.write(
            {"suite": "optimizers", "entry": entry.name, "algorithm": algorithm, "elements": elements,
             "round": round_, "updates": _UPDATES, "median_ms": timing.median, "min_ms": timing.minimum}
            | noise_record(seen)
        )
        _note(bench, f"optimizers, {algorithm}, {entry.name}, round {round_}", seen)
        _compare_moves(algorithm, round_, entries, entry, answers, moved)
    shown = ", ".join(f"{name} {statistics.median(t.median for t in rounds.values()):.2f} ms"
                      for name, rounds in found.items())
    bench.say(f"optimizers, {algorithm}: {shown}")


def _run_muon(bench: Bench, players: _Players, width: int) -> None:
    moved: dict[str, float] = {}
    for round_, entry in turns(players.entries, bench.blocks):
        workers = players.workers[entry.name]
        watch = Watch(workers.pids)
        answers = workers.ask(f"run muon {width} {_MUON_UPDATES}", "run", _TIMEOUT_S)
        seen = watch.stop()
        by_rank = check_numbers(workers, answers, "us", _MUON_UPDATES)
        transforms = check_numbers(workers, answers, "transforms_us", _MUON_UPDATES)
        timing = _timing([max(ranks) for ranks in zip(*by_rank, strict=True)])
        found = bench.findings.muon.setdefault(entry.name, Muon())
        found.rounds[round_] = timing
        for rounds, numbers in ((found.by_rank, by_rank), (found.transforms, transforms)):
            for rank, times_us in enumerate(numbers):
                if rank == len(rounds):
                    rounds.append({})
                rounds[rank][round_] = _timing(times_us)
        bench.journal.write(
            {"suite": "optimizers", "entry": entry.name, "algorithm": "muon", "width": width, "round": round_,
             "updates": _MUON_UPDATES, "median_ms": timing.median, "min_ms": timing.minimum,
             "ranks_ms": [rounds[round_].median for rounds in found.by_rank],
             "transforms_ms": [rounds[round_].median for rounds in found.transforms]} | noise_record(seen)
        )
        _note(bench, f"optimizers, muon, {entry.name}, round {round_}", seen)
        _compare_moves("muon", round_, players.entries, entry, answers, moved)
    shown = ", ".join(f"{name} {medians(found.rounds).median:.1f} ms" for name, found in bench.findings.muon.items())
    bench.say(f"optimizers, muon: {shown}")


def _timing(times_us: list[float]) -> Timing:
    return Timing(statistics.median(times_us) / 1e3, min(times_us) / 1e3)


def _note(bench: Bench, what: str, seen: Disturbance) -> None:
    reason = bench.limits.broken_by(seen, float("inf"))
    if reason is not None:
        bench.disturbed(what, reason, False, seen.busiest)


def _compare_moves(algorithm: str, round_: int, entries: list[Entry], entry: Entry, answers: list[Answer],
                   moved: dict[str, float]) -> None:
    """Records how far an entry's values have moved. After the last entry of a round, when all have made the
    same number of updates, raises BenchFailure if these distances differ."""
    if entry.role is Role.FLOOR:
        return
    moved[entry.name] = float(answers[0].get("moved", float("nan")))
    if len(moved) < sum(e.role is not Role.FLOOR for e in entries):
        return
    first = next((name for name in moved if name != registry.EIGHT_BITS), registry.EIGHT_BITS)
    expected = moved[first]
    for name, value in moved.items():
        tolerance = _TOLERANCE_IN_EIGHT_BITS if name == registry.EIGHT_BITS else _TOLERANCE
        if not abs(value - expected) <= tolerance * abs(expected):
            raise BenchFailure(f"optimizers, {algorithm}: {name} does something else than {first}: values have "
                               f"moved by {value:g} after round {round_}, not by {expected:g}")
    moved.clear()
