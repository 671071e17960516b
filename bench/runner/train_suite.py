"""Step times of training, entries in turn."""

from __future__ import annotations

import statistics
from pathlib import Path

from . import loss_curve, registry
from .bench import Bench, noise_record
from .entry import Entry
from .workers import Answer, Workers, check_numbers
from .disturbance import Watch
from .findings import Training
from .model import MODELS, Model
from .spread import Timing
from .turns import turns

_TRIES = 3
MEMORY_SHARE = 0.85  # of the free memory, for entries that stay


class _Player:
    """An entry of one model, running or not."""

    def __init__(self, bench: Bench, suite: str, model: Model, entry: Entry) -> None:
        self.bench, self.suite, self.model, self.entry = bench, suite, model, entry
        self.found = Training()
        self.fewest_switches_per_s = float("inf")
        self._workers: Workers | None = None
        self._losses: list[float] = []

    def enter(self) -> None:
        """Starts and warms up, unless it runs already."""
        if self._workers is not None:
            return
        self._workers = self.bench.start(self.entry, f"{self.suite}-{self.model.name}")
        self._losses = []
        self._workers.wait("idle", self.bench.start_timeout_s)
        ready = self._workers.wait("ready", self.bench.start_timeout_s)
        self.found.parameters = int(ready[0].get("parameters", 0))
        self._step(self.model.warm_up_steps)

    def leave(self) -> None:
        """Ends it in order."""
        if self._workers is not None:
            self.bench.leave(self._workers)
            self._workers = None

    def kill(self) -> None:
        """Ends it at once."""
        if self._workers is not None:
            self._workers.kill()
            self._workers = None

    def block(self, round_: int) -> None:
        """Measures one block, and repeats it if something else disturbs it."""
        for attempt in range(_TRIES):
            self._step(self.model.settle_steps)
            assert self._workers is not None
            watch = Watch(self._workers.pids)
            answers = self._step(self.model.block_steps)
            seen = watch.stop()
            reason = self.bench.limits.broken_by(seen, self.fewest_switches_per_s)
            self.fewest_switches_per_s = min(self.fewest_switches_per_s, seen.switches_per_s)
            again = reason is not None and attempt + 1 < _TRIES
            step_ms = [max(ranks) for ranks in zip(*(a["ms"] for a in answers), strict=True)]
            timing = Timing(statistics.median(step_ms), min(step_ms))
            # Per rank, also if one process does the work of all.
            rank_steps = self.bench.ranks * self.model.block_steps
            cpu_ms = sum(a["cpu_ms"] for a in answers) / rank_steps
            faults = sum(a["minor_faults"] for a in answers) / rank_steps
            self.bench.journal.write(
                {"suite": self.suite, "model": self.model.name, "entry": self.entry.name,
                 "round": round_, "attempt": attempt, "kept": not again, "disturbed": reason,
                 "median_ms": timing.median, "min_ms": timing.minimum, "ms": step_ms,
                 "cpu_ms_per_step": cpu_ms, "minor_faults_per_step": faults,
                 "private_kib": [a["private_kib"] for a in answers]} | noise_record(seen)
            )
            if reason is not None:
                what = f"{self.model.name}, {self.entry.name}, round {round_}"
                self.bench.disturbed(what, reason, again, seen.busiest)
            if not again:
                self.found.rounds[round_] = timing
                self.found.cpu_ms.append(cpu_ms)
                self.found.faults.append(faults)
                self.found.private_kib = statistics.fmean(a["private_kib"] for a in answers)
                return

    def _step(self, steps: int) -> list[Answer]:
        assert self._workers is not None
        timeout_s = 30.0 + steps * self.model.step_timeout_s
        answers = self._workers.ask(f"steps {steps}", "steps", timeout_s)
        check_numbers(self._workers, answers, "ms", steps)
        losses = check_numbers(self._workers, answers, "loss", steps)
        for key in ("cpu_ms", "minor_faults", "private_kib"):
            for answer in answers:
                answer[key] = float(answer.get(key, 0.0))
        self._losses += [statistics.fmean(ranks) for ranks in zip(*losses, strict=True)]
        if len(self._losses) > len(self.found.losses):
            self.found.losses = list(self._losses)
        return answers


def run(bench: Bench, models: list[str]) -> None:
    """Trains each model with all its entries, `bench.blocks` rounds."""
    for name in models:
        entries = registry.training(bench.programs, name, bench.text, bench.quick)
        _run_model(bench, "train", MODELS[name], bench.chosen(entries))


def run_hooks(bench: Bench, models: list[str]) -> None:
    """Like `run`, for the entries with gradients in other forms."""
    for name in models:
        entries = registry.hooks(bench.programs, name, bench.text, bench.quick)
        _run_model(bench, "hooks", MODELS[name], bench.chosen(entries))


def _run_model(bench: Bench, suite: str, model: Model, entries: list[Entry]) -> None:
    players = [_Player(bench, suite, model, entry) for entry in entries]
    found = bench.findings.training.setdefault(model.name, {})
    stay = not bench.starts_anew and len(players) * bench.ranks * model.rank_mib < MEMORY_SHARE * available_mib()
    bench.say(
        f"{suite} {model.name}: {len(players)} entries, {bench.blocks} rounds, "
        + ("all stay between their blocks" if stay else "started anew for each block")
    )
    try:
        if stay:
            for player in players:
                player.enter()
                bench.say(f"{suite} {model.name}: {player.entry.name} is warm")
        for round_, player in turns(players, bench.blocks):
            player.enter()
            player.block(round_)
            timing = player.found.rounds[round_]
            bench.say(
                f"{suite} {model.name}, round {round_}: {player.entry.name} {timing.median:.2f} ms"
            )
            if not stay:
                player.leave()
        for player in players:
            player.leave()
            found[player.entry.name] = player.found
    finally:
        for player in players:
            player.kill()
    check_curves(bench, model.name)


def check_curves(bench: Bench, model: str) -> None:
    """Compares the loss curves of entries whose ranks train alone, and those of entries whose ranks train
    together."""
    found = bench.findings.training[model]
    for kind, alone in (("ranks alone", True), ("ranks together", False)):
        curves = {n: t.losses for n, t in found.items()
                  if (n in registry.FLOORS) == alone and registry.has_usual_curve(n)}
        if len(curves) > 1:
            agreement = loss_curve.check(curves, f"{model}, {kind}")
            bench.say(agreement)
            bench.findings.agreements.append(agreement)


def available_mib() -> float:
    """The memory that new processes may use without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    return 0.0
