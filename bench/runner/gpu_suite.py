"""Training on one GPU, entries in turn. Refuses to start without a GPU."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import loss_curve, registry
from .bench import Bench
from .entry import Entry
from .workers import Answer, Workers, check_numbers
from .failure import BenchFailure
from .findings import Gpu
from .spread import Timing
from .turns import turns

_MODELS = {"gpt2-1k": 1024, "gpt2-16k": 16384}  # tokens per step
_DEEP_TOKENS = 1024
_WARM_UP_STEPS, _BLOCK_STEPS = 10, 20
_QUICK_STEPS = 5  # a graph runs from the fourth step on
_STEP_TIMEOUT_S = 30.0
_MOST_LAYERS = 4096
_LOSS_TOLERANCE = 2e-2  # bf16 rounds to three digits


def present() -> str:
    """The GPU's name. Raises BenchFailure without a GPU; over fakes, returns the pretended name."""
    if os.environ.get("TESSERA_BENCH_FAKE_GPU") == "1":
        return "a pretended GPU"
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=60)
        names = done.stdout.strip().splitlines() if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        names = []
    if not names or not Path("/dev/nvidia0").exists():
        raise BenchFailure(
            "--suite gpu: got no GPU (nvidia-smi lists none, or there is no /dev/nvidia0), expected an "
            "NVIDIA GPU with its driver; run it on such a machine, or leave the suite out")
    return names[0]


class _OutOfMemory(Exception):
    """An entry does not fit."""


class _Player:
    """One entry of one model. Each block is a separate start, because only one entry can have the GPU."""

    def __init__(self, bench: Bench, model: str, entry: Entry) -> None:
        self.bench, self.model, self.entry = bench, model, entry
        self.found = Gpu(tokens=_MODELS.get(model, _DEEP_TOKENS))
        self._losses: list[float] = []

    def block(self, round_: int) -> None:
        """Starts, warms up, measures, counts once and ends."""
        bench, found = self.bench, self.found
        warm_up, steps = (_QUICK_STEPS, _QUICK_STEPS) if bench.quick else (_WARM_UP_STEPS, _BLOCK_STEPS)
        self._losses = []
        try:
            with bench.start(self.entry, f"gpu-{self.model}", world=1) as workers:
                workers.wait("idle", bench.start_timeout_s)
                workers.wait("ready", 5 * bench.start_timeout_s)
                self._step(workers, warm_up)
                answer = self._step(workers, steps)
                if round_ == 0:
                    self._count(workers)
                bench.leave(workers)
        except BenchFailure as failure:
            if "out of memory" in str(failure).lower():
                raise _OutOfMemory(str(failure).splitlines()[0]) from failure
            raise
        ms = statistics.fmean(answer["ms"])
        found.rounds[round_] = Timing(ms, ms)
        found.peak_bytes = max(found.peak_bytes, int(answer.get("device_peak_bytes", 0)))
        found.held_bytes = int(answer.get("device_bytes", 0))
        # A graph keeps its activations, which the formula does not include.
        found.formula_bytes = 0 if "graph" in self.entry.name else int(answer.get("formula_bytes", 0))
        found.losses = found.losses or self._losses
        bench.journal.write({"suite": "gpu", "model": self.model, "entry": self.entry.name,
                             "round": round_} | {k: v for k, v in answer.items() if k != "event"})
        bench.say(f"{self.model}: {self.entry.name}, round {round_}: {ms:.2f} ms")

    def _step(self, workers: Workers, steps: int) -> Answer:
        answers = workers.ask(f"steps {steps}", "steps", 300.0 + steps * _STEP_TIMEOUT_S)
        check_numbers(workers, answers, "ms", steps)
        self._losses += check_numbers(workers, answers, "loss", steps)[0]
        return answers[0]

    def _count(self, workers: Workers) -> None:
        seen = workers.ask("counts", "counts", 300.0)[0]
        self.found.counts = (int(seen["kernels"]), int(seen["copies"]), int(seen["fills"]))
        self.bench.journal.write({"suite": "gpu", "model": self.model,
                                  "entry": self.entry.name} | seen)


def run(bench: Bench, models: Sequence[str]) -> None:
    """Trains the models that `models` names: GPT-2 at 1k and at 16k tokens per step, and "deep", the deepest
    GPT that fits."""
    bench.findings.gpu_name = present()
    for model in _MODELS:
        if model in models:
            _run_model(bench, model)
    deepest = _deepest(bench) if "deep" in models else 0
    if deepest:
        _run_model(bench, f"deep-{deepest}")


def _run_model(bench: Bench, model: str) -> None:
    players = [_Player(bench, model, c)
               for c in bench.chosen(registry.gpu(bench.programs, model, bench.text, bench.quick))]
    out: set[str] = set()
    for round_, player in turns(players, bench.blocks):
        if player.entry.name in out:
            continue
        try:
            player.block(round_)
        except _OutOfMemory:
            out.add(player.entry.name)
            bench.findings.warnings.append(f"{model}: {player.entry.name} does not fit")
            bench.say(bench.findings.warnings[-1])
    played = {p.entry.name: p.found for p in players if p.entry.name not in out}
    bench.findings.gpu[model] = played
    if len(played) > 1:
        curves = {name: found.losses for name, found in played.items()}
        bench.findings.agreements.append(loss_curve.check(curves, model, _LOSS_TOLERANCE))


def _deepest(bench: Bench) -> int:
    """Returns the layers of the deepest model that unwrapped LibTorch can train. Doubles the layers until
    the model does not fit, then bisects to within an eighth. 0 if that entry was not asked for."""
    floors = [c for c in registry.gpu(bench.programs, "deep", bench.text, bench.quick) if c.name == "libtorch local"]
    if not bench.chosen(floors):
        return 0

    def fits(layers: int) -> bool:
        entry, = (c for c in registry.gpu(bench.programs, f"deep-{layers}", bench.text, bench.quick)
                       if c.name == "libtorch local")
        try:
            with bench.start(entry, f"gpu-deep-{layers}", world=1) as workers:
                workers.wait("idle", bench.start_timeout_s)
                workers.wait("ready", 5 * bench.start_timeout_s)
                workers.ask("steps 2", "steps", 300.0)
                bench.leave(workers)
        except BenchFailure as failure:
            if "out of memory" not in str(failure).lower():
                raise
            return False
        return True

    good, bad = 0, 8
    while fits(bad):
        good, bad = bad, 2 * bad
        if bad > _MOST_LAYERS:
            return good
    while bad - good > max(1, bad // 8):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    bench.say(f"the deepest GPT that fits: {good} layers")
    return good
