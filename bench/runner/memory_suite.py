"""Private memory of training, each entry alone, without timing."""

from __future__ import annotations

import statistics

from . import registry
from .bench import Bench
from .entry import Entry
from .workers import Answer
from .findings import Memory
from .model import MODELS, Model
from .private_memory import PeakMemory

_STEPS = 10
_PERIOD_S = 0.02


def run(bench: Bench, models: list[str]) -> None:
    """Measures idle, peak during ten steps, and afterwards, for each model and entry."""
    for name in models:
        for entry in bench.chosen(
            registry.memory(bench.programs, name, bench.text, bench.quick)
        ):
            if bench.quick and entry.name in registry.FLOORS:
                continue
            _measure(bench, MODELS[name], entry)


def _measure(bench: Bench, model: Model, entry: Entry) -> None:
    with bench.start(entry, f"memory-{model.name}") as workers:
        idle = workers.wait("idle", bench.start_timeout_s)
        workers.wait("ready", bench.start_timeout_s)
        peak = PeakMemory(workers.pids)
        timeout_s = 60.0 + 3 * _STEPS * model.step_timeout_s  # sampling slows down the steps
        after = workers.ask(f"steps {_STEPS}", "steps", timeout_s, peak.sample, _PERIOD_S)
        peak.sample()
        bench.leave(workers)
    found = Memory(
        idle_kib=_mean(idle), peak_kib=statistics.fmean(peak.peak_kib), after_kib=_mean(after)
    )
    bench.findings.memory.setdefault(model.name, {})[entry.name] = found
    bench.journal.write(
        {"suite": "memory", "model": model.name, "entry": entry.name,
         "idle_kib": [a["private_kib"] for a in idle], "peak_kib": peak.peak_kib,
         "after_kib": [a["private_kib"] for a in after], "samples": peak.samples}
    )
    bench.say(
        f"memory {model.name}: {entry.name} {found.peak_above_idle_mib:.0f} MiB above idle"
    )


def _mean(answers: list[Answer]) -> float:
    return statistics.fmean(float(answer["private_kib"]) for answer in answers)
