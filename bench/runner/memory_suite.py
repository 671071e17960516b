"""Private memory of training, each contestant alone, nothing timed."""

from __future__ import annotations

import statistics

from . import roster
from .bench import Bench
from .contestant import Contestant
from .crew import Answer
from .findings import Memory
from .model import MODELS, Model
from .private_memory import PeakMemory

_STEPS = 10
_PERIOD_S = 0.02


def run(bench: Bench, models: list[str]) -> None:
    """Idle, peak during ten steps, and afterwards, for each model and contestant."""
    for name in models:
        for contestant in bench.chosen(
            roster.memory(bench.programs, name, bench.text, bench.quick)
        ):
            if bench.quick and contestant.name in roster.FLOORS:
                continue
            _measure(bench, MODELS[name], contestant)


def _measure(bench: Bench, model: Model, contestant: Contestant) -> None:
    with bench.start(contestant, f"memory-{model.name}") as crew:
        idle = crew.wait("idle", bench.start_timeout_s)
        crew.wait("ready", bench.start_timeout_s)
        peak = PeakMemory(crew.pids)
        timeout_s = 60.0 + 3 * _STEPS * model.step_timeout_s  # sampling slows the steps
        after = crew.ask(f"steps {_STEPS}", "steps", timeout_s, peak.sample, _PERIOD_S)
        peak.sample()
        bench.leave(crew)
    found = Memory(
        idle_kib=_mean(idle), peak_kib=statistics.fmean(peak.peak_kib), after_kib=_mean(after)
    )
    bench.findings.memory.setdefault(model.name, {})[contestant.name] = found
    bench.journal.write(
        {"suite": "memory", "model": model.name, "contestant": contestant.name,
         "idle_kib": [a["private_kib"] for a in idle], "peak_kib": peak.peak_kib,
         "after_kib": [a["private_kib"] for a in after], "samples": peak.samples}
    )
    bench.say(
        f"memory {model.name}: {contestant.name} {found.peak_above_idle_mib:.0f} MiB above idle"
    )


def _mean(answers: list[Answer]) -> float:
    return statistics.fmean(float(answer["private_kib"]) for answer in answers)
