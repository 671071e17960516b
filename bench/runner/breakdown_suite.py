"""The parts of a step under our strategies, from their traces, next to the floor."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from . import registry, trace_rows
from .bench import Bench, noise_record
from .entry import Entry
from .workers import check_numbers
from .disturbance import Watch
from .failure import BenchFailure
from .findings import Breakdown
from .model import MODELS, Model
from .trace_rows import Rows
from .turns import turns

_TRIES = 3
_STEPS = {"A": 10, "S": 40, "MLP": 100, "B": 4, "C": 4}
_WARM_UP_STEPS = 3  # memory has settled by then


def run(bench: Bench, models: list[str]) -> None:
    """Runs all entries in turn, restarted for each round so that each has its own trace."""
    for name in models:
        entries = bench.chosen(registry.breakdown(bench.programs, name, bench.text, bench.quick))
        found = bench.findings.breakdown.setdefault(name, {})
        for round_, entry in turns(entries, bench.blocks):
            into = found.setdefault(entry.name, Breakdown())
            _round(bench, MODELS[name], entry, round_, into)


def _round(
    bench: Bench, model: Model, entry: Entry, round_: int, into: Breakdown
) -> None:
    for attempt in range(_TRIES):
        again = _measure(bench, model, entry, round_, attempt, into)
        if not again:
            return


def _measure(
    bench: Bench, model: Model, entry: Entry, round_: int, attempt: int, into: Breakdown
) -> bool:
    """Runs one start. Returns whether it was disturbed and must be repeated."""
    # After the warm-up, the first forward's span includes the wait for the command. So one step more
    # is skipped.
    skipped = _WARM_UP_STEPS + 1
    steps = 1 + (4 if bench.quick else _STEPS[model.name])
    timeout_s = 30.0 + (skipped + steps) * model.step_timeout_s
    is_floor = entry.name in registry.FLOORS
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        path = Path(folder) / "trace.json"
        traced = entry.with_arguments("--trace", str(path))
        with bench.start(traced, f"breakdown-{model.name}") as workers:
            workers.wait("idle", bench.start_timeout_s)
            ready = workers.wait("ready", bench.start_timeout_s)
            workers.ask(f"steps {_WARM_UP_STEPS}", "steps", timeout_s)
            watch = Watch(workers.pids)
            answers = workers.ask(f"steps {steps}", "steps", timeout_s)
            seen = watch.stop()
            ms = check_numbers(workers, answers, "ms", steps)
            bench.leave(workers)
        of_steps = [] if is_floor else trace_rows.steps_after(trace_rows.read(path), skipped)
    if not is_floor and len(of_steps) != steps - 1:
        raise BenchFailure(
            f"{entry.name}: the trace has {skipped + len(of_steps)} steps, "
            f"expected {_WARM_UP_STEPS + steps}"
        )
    rows = _undivided(ms) if is_floor else trace_rows.typical(of_steps)
    cpu_ms = statistics.fmean(float(a["cpu_ms"]) for a in answers) / steps
    faults = statistics.fmean(float(a["minor_faults"]) for a in answers) / steps
    reason = bench.limits.broken_by(seen, float("inf"))
    again = reason is not None and attempt + 1 < _TRIES
    total_ms = sum(rows.values())
    bench.journal.write(
        {"suite": "breakdown", "model": model.name, "entry": entry.name,
         "round": round_, "attempt": attempt, "kept": not again, "disturbed": reason,
         "parameters": int(ready[0].get("parameters", 0)), "step_ms": total_ms,
         "rows_ms": {} if is_floor else rows, "cpu_ms_per_step": cpu_ms,
         "minor_faults_per_step": faults} | noise_record(seen)
    )
    what = f"breakdown {model.name}, {entry.name}, round {round_}"
    bench.say(f"{what}: {total_ms:.2f} ms")
    if reason is not None:
        bench.disturbed(what, reason, again, seen.busiest)
    if not again:
        into.rounds[round_] = rows
        into.cpu_ms.append(cpu_ms)
        into.faults.append(faults)
        into.parameters = int(ready[0].get("parameters", 0))
    return again


def _undivided(ms: list[list[float]]) -> Rows:
    """The floor has no engine that could record a trace, so its whole time is `rest`."""
    steps = [statistics.fmean(ranks) for ranks in zip(*ms, strict=True)][1:]
    nothing = dict.fromkeys(trace_rows.ROWS, 0.0)
    return trace_rows.typical([nothing | {"rest": step} for step in steps])
