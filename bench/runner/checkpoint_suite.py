"""The cost of saving and loading a run, ours and PyTorch's in turn, model A."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

from . import registry
from .bench import Bench, noise_record
from .disturbance import Watch
from .entry import Entry, Role
from .findings import Saving
from .spread import Timing
from .turns import turns
from .workers import Workers

_TIMEOUT_S = 300.0
_OURS = ("save", "load", "stall", "copy", "write")
_PEERS = ("save", "load", "stall")


def run(bench: Bench) -> None:
    """Runs every operation with all entries in turn, in a directory of the logs' file system."""
    model = "S" if bench.quick else "A"
    entries = bench.chosen(registry.checkpoints(bench.programs, model, bench.text, bench.quick))
    place = bench.logs / "checkpoints"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    worker_sets: dict[str, Workers] = {}
    try:
        for entry in entries:
            workers = bench.start(entry, "checkpoint")
            worker_sets[entry.name] = workers
            workers.wait("idle", bench.start_timeout_s)
            workers.wait("ready", bench.start_timeout_s)
        for round_, entry in turns(entries, bench.blocks):
            _round(bench, worker_sets[entry.name], entry, round_, place)
        for workers in worker_sets.values():
            bench.leave(workers)
    finally:
        for workers in worker_sets.values():
            workers.kill()
        shutil.rmtree(place, ignore_errors=True)


def _round(bench: Bench, workers: Workers, entry: Entry, round_: int, place: Path) -> None:
    folder = place / f"{entry.file_name}-{round_}"
    for what in _OURS if entry.role is Role.OURS else _PEERS:
        where = folder if what in ("save", "load") else folder.with_name(f"{folder.name}-{what}")
        if what in ("write",):
            where.mkdir(exist_ok=True)
        watch = Watch(workers.pids)
        answers = workers.ask(f"checkpoint {what} {where}", "checkpoint", _TIMEOUT_S)
        ms = max(float(answer["ms"]) for answer in answers)
        size_bytes = sum(int(answer["bytes"]) for answer in answers)
        found = bench.findings.checkpoints.setdefault(entry.name, {}).setdefault(
            what, Saving(size_bytes))
        found.rounds[round_] = Timing(ms, ms)
        found.grown_kib[round_] = max(int(answer["grown_kib"]) for answer in answers)
        bench.journal.write(
            {"suite": "checkpoint", "entry": entry.name, "what": what, "round": round_, "ms": ms,
             "bytes": size_bytes, "grown_kib": found.grown_kib[round_]} | noise_record(watch.stop())
        )
    shutil.rmtree(folder, ignore_errors=True)
    for other in place.glob(f"{folder.name}-*"):
        shutil.rmtree(other, ignore_errors=True)
    shown = ", ".join(
        f"{what} {statistics.median(t.median for t in saving.rounds.values()):.1f} ms"
        for what, saving in bench.findings.checkpoints[entry.name].items()
    )
    bench.say(f"checkpoint, round {round_}: {entry.name}: {shown}")
