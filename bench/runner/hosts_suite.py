"""Training on two hosts, entries in turn, over links of several rates."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from . import hosts_findings, loss_curve, registry, trace_rows
from .bench import Bench, noise_record
from .disturbance import Watch
from .entry import Entry
from .hosts_findings import Hosted
from .launch import Job, Rank
from .model import MODELS
from .spread import Spread, Timing
from .train_suite import MEMORY_SHARE, available_mib
from .turns import rotated
from .two_hosts import GIGABIT, HOSTS, LINKS, SLOWEST, UNLIMITED, Link, TwoHosts
from .workers import Answer, Workers, check_numbers

_MODEL = MODELS["A"]
_PER_HOST = (1, 2)
_WARM_UP_STEPS = 4  # PowerSGD begins with the third
_SETTLE_STEPS = 1
_STEPS = {UNLIMITED.name: 3, GIGABIT.name: 3, SLOWEST.name: 2}  # of a block; each takes seconds
_QUICK_STEPS = 1
_TRACED_STEPS = 6
_TRIES = 2
_STEP_TIMEOUT_S = 60.0
_SILENCE_S = 0.1
_FOREIGN = 0.25  # the kernel's time for the link belongs to no process


class Joined(Protocol):
    """The functions of two hosts that the suite needs."""

    def limit(self, link: Link) -> None: ...

    def sent_bytes(self) -> tuple[int, ...]: ...

    def launch(self, job: Job, into: list[Rank]) -> None: ...


class _Player:
    """An entry, running or not."""

    def __init__(self, bench: Bench, hosts: Joined, per_host: int, entry: Entry) -> None:
        self.bench, self.hosts, self.per_host, self.entry = bench, hosts, per_host, entry
        self.losses: list[float] = []
        self.parameters = 0
        self._workers: Workers | None = None
        self._run_losses: list[float] = []
        self._fewest_switches_per_s = float("inf")

    def enter(self) -> None:
        """Starts and warms up, unless it runs already."""
        if self._workers is not None:
            return
        self._run_losses = []
        folder = self.bench.logs / f"hosts-{HOSTS}x{self.per_host}"
        self._workers = Workers(self.entry, HOSTS * self.per_host, folder, self.bench.pinned, self.hosts.launch)
        self._workers.wait("idle", self.bench.start_timeout_s)
        ready = self._workers.wait("ready", self.bench.start_timeout_s)
        self.parameters = int(ready[0].get("parameters", 0))
        self.step(_WARM_UP_STEPS)

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

    def block(self, round_: int, link: Link, into: Hosted) -> None:
        """Measures one block, and repeats it if something else disturbs it."""
        assert self._workers is not None
        steps = _QUICK_STEPS if self.bench.quick else _STEPS[link.name]
        limits = dataclasses.replace(self.bench.limits, foreign=max(_FOREIGN, self.bench.limits.foreign))
        for attempt in range(_TRIES):
            # Gathers of updated parameters may still run after a step. Without the wait, those of the
            # previous entry would be counted here.
            self._wait_for_silence()
            self.step(_SETTLE_STEPS)
            watch = Watch(self._workers.pids)
            before = self.hosts.sent_bytes()
            answers = self.step(steps)
            after = self.hosts.sent_bytes()
            seen = watch.stop()
            reason = limits.broken_by(seen, self._fewest_switches_per_s)
            self._fewest_switches_per_s = min(self._fewest_switches_per_s, seen.switches_per_s)
            again = reason is not None and attempt + 1 < _TRIES
            step_ms = [max(ranks) for ranks in zip(*(a["ms"] for a in answers), strict=True)]
            sent = [(end - begin) / steps for begin, end in zip(before, after, strict=True)]
            timing = Timing(statistics.median(step_ms), min(step_ms))
            self.bench.journal.write(
                {"suite": "hosts", "model": _MODEL.name, "entry": self.entry.name, "hosts": HOSTS,
                 "per_host": self.per_host, "link": link.name, "round": round_, "attempt": attempt,
                 "kept": not again, "disturbed": reason, "median_ms": timing.median, "min_ms": timing.minimum,
                 "ms": step_ms, "sent_bytes_per_step": sent} | noise_record(seen))
            what = f"{hosts_findings.place(self.per_host, link).name}, {self.entry.name}, round {round_}"
            if reason is not None:
                self.bench.disturbed(what, reason, again, seen.busiest)
            if not again:
                self.bench.say(f"{what}: {timing.median:.0f} ms, {max(sent) / 1e6:.2f} MB per step")
                into.rounds[round_] = timing
                into.sent_bytes.append(max(sent))
                return

    def _wait_for_silence(self) -> None:
        """Waits until the link is idle."""
        deadline = time.monotonic() + _STEP_TIMEOUT_S
        sent, before = self.hosts.sent_bytes(), None
        while sent != before and time.monotonic() < deadline:
            time.sleep(_SILENCE_S)
            before, sent = sent, self.hosts.sent_bytes()

    def step(self, steps: int) -> list[Answer]:
        """Trains `steps` steps."""
        assert self._workers is not None
        answers = self._workers.ask(f"steps {steps}", "steps", 30.0 + steps * _STEP_TIMEOUT_S)
        check_numbers(self._workers, answers, "ms", steps)
        losses = check_numbers(self._workers, answers, "loss", steps)
        self._run_losses += [statistics.fmean(ranks) for ranks in zip(*losses, strict=True)]
        if len(self._run_losses) > len(self.losses):
            self.losses = list(self._run_losses)
        return answers


def run(bench: Bench, make_hosts: Callable[[], AbstractContextManager[Joined]] = TwoHosts) -> None:
    """2 hosts x 1 rank, then 2 x 2, with `bench.blocks` rounds over each link."""
    with make_hosts() as hosts:
        for per_host in _PER_HOST:
            _run_world(bench, hosts, per_host)


def _run_world(bench: Bench, hosts: Joined, per_host: int) -> None:
    hosts.limit(UNLIMITED)
    everyone = bench.chosen(registry.hosts(bench.programs, per_host, bench.text.resolve(), bench.quick))
    players = [_Player(bench, hosts, per_host, entry) for entry in everyone]
    stay = not bench.starts_anew and len(players) * HOSTS * per_host * _MODEL.rank_mib < MEMORY_SHARE * available_mib()
    bench.say(f"hosts {HOSTS} x {per_host}: {len(players)} entries, {bench.blocks} rounds, "
              + ("all stay between their blocks" if stay else "started anew for each block"))
    _note_first_bucket(bench, hosts, per_host, everyone)
    try:
        for player in players if stay else []:
            player.enter()
            bench.say(f"hosts {HOSTS} x {per_host}: {player.entry.name} is warm")
        _play(bench, hosts, per_host, players, stay)
        for player in players:
            player.leave()
    finally:
        for player in players:
            player.kill()
    _check_curves(bench, per_host, players)


def _play(bench: Bench, hosts: Joined, per_host: int, players: list[_Player], stay: bool) -> None:
    """Runs all links in each round, and all entries in turn over each link."""
    found = bench.findings.hosts.found
    for round_ in range(bench.blocks):
        for link in LINKS:
            known = found.setdefault(hosts_findings.place(per_host, link), {})
            here = [p for p in players if registry.is_over(p.entry.name, link == SLOWEST)]
            for player in rotated(here, round_):
                hosts.limit(UNLIMITED)
                player.enter()
                hosts.limit(link)
                player.block(round_, link, known.setdefault(player.entry.name, Hosted()))
                bench.findings.hosts.parameters = player.parameters
                if not stay:
                    hosts.limit(UNLIMITED)
                    player.leave()
    hosts.limit(UNLIMITED)


def _note_first_bucket(bench: Bench, hosts: Joined, per_host: int, everyone: list[Entry]) -> None:
    """Measures the time to the first bucket from the trace of a separate start."""
    found = [entry for entry in everyone if entry.name == "tessera ddp"]
    if not found:
        return
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        path = Path(folder) / "trace.json"
        player = _Player(bench, hosts, per_host, found[0].with_arguments("--trace", str(path)))
        try:
            player.enter()
            player.step(_TRACED_STEPS)
            player.leave()
        finally:
            player.kill()
        firsts = trace_rows.first_reductions(path)[_WARM_UP_STEPS + 1 :]  # the step after warm-up waited for its command
    bench.findings.hosts.first_bucket_ms[per_host] = Spread.of(firsts)
    bench.journal.write({"suite": "hosts", "model": _MODEL.name, "entry": "tessera ddp", "hosts": HOSTS,
                         "per_host": per_host, "first_bucket_ms": firsts})
    bench.say(f"hosts {HOSTS} x {per_host}: the first bucket after {statistics.median(firsts):.0f} ms")


def _check_curves(bench: Bench, per_host: int, players: list[_Player]) -> None:
    """Compares the loss curves of entries whose ranks train alone, and those of entries whose ranks train
    together."""
    for kind, alone in (("ranks alone", True), ("ranks together", False)):
        curves = {p.entry.name: p.losses for p in players
                  if (p.entry.name in hosts_findings.FLOORS) == alone and registry.has_usual_curve(p.entry.name)}
        if len(curves) > 1:
            agreement = loss_curve.check(curves, f"{HOSTS} x {per_host}, {kind}")
            bench.say(agreement)
            bench.findings.agreements.append(agreement)
