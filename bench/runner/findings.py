"""The findings of the suites, by the names of entries."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection

from .hosts_findings import Hosts
from .spread import Rounds, Spread, Timing, medians, ratio


@dataclasses.dataclass
class Training:
    """One entry training one model."""

    rounds: dict[int, Timing] = dataclasses.field(default_factory=dict)  # ms per step
    cpu_ms: list[float] = dataclasses.field(default_factory=list)  # per rank and step, by block
    faults: list[float] = dataclasses.field(default_factory=list)  # per rank and step, by block
    private_kib: float = 0.0
    losses: list[float] = dataclasses.field(default_factory=list)  # mean over ranks, by step
    parameters: int = 0


@dataclasses.dataclass
class Breakdown:
    """The parts of a step under one strategy."""

    rounds: dict[int, dict[str, float]] = dataclasses.field(default_factory=dict)  # ms by row
    cpu_ms: list[float] = dataclasses.field(default_factory=list)  # per rank and step, by round
    faults: list[float] = dataclasses.field(default_factory=list)  # per rank and step, by round
    parameters: int = 0


@dataclasses.dataclass(frozen=True)
class Memory:
    """Mean over ranks, KiB."""

    idle_kib: float
    peak_kib: float
    after_kib: float

    @property
    def peak_above_idle_mib(self) -> float:
        return (self.peak_kib - self.idle_kib) / 1024


@dataclasses.dataclass
class Gpu:
    """One entry training one model on a GPU. Bytes are those of LibTorch's allocator."""

    tokens: int  # per step
    rounds: dict[int, Timing] = dataclasses.field(default_factory=dict)  # ms per step
    peak_bytes: int = 0
    held_bytes: int = 0  # between steps, without the memory that libraries keep
    formula_bytes: int = 0  # held_bytes as predicted by the engine; 0 without an engine
    counts: tuple[int, int, int] | None = None  # kernels, copies, fills of a step
    losses: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, order=True)
class Call:
    """One collective. `size_bytes`: of the full buffer."""

    world: int
    op: str
    size_bytes: int
    dtype: str


@dataclasses.dataclass(frozen=True)
class Scale:
    """One strategy at one world size."""

    parameters: int
    cpu_ms: dict[int, Timing] = dataclasses.field(default_factory=dict)  # per rank and step


@dataclasses.dataclass
class Saving:
    """One operation on checkpoints; the slowest rank of each round."""

    size_bytes: int  # of all ranks together
    rounds: dict[int, Timing] = dataclasses.field(default_factory=dict)  # ms
    grown_kib: dict[int, int] = dataclasses.field(default_factory=dict)  # resident memory, the maximum over ranks


@dataclasses.dataclass
class Restarts:
    """Seconds of one entry to a first step on all ranks."""

    start: dict[int, Timing] = dataclasses.field(default_factory=dict)  # from the launcher's start
    restart: dict[int, Timing] = dataclasses.field(default_factory=dict)  # from the death of a rank

    def beyond(self) -> Spread:
        """How much longer a restart takes than a start, round by round."""
        return Spread.of(self.restart[r].median - self.start[r].median for r in self.restart)


@dataclasses.dataclass
class Muon:
    """Updates by Muon, or one of the entries they are compared with, in ms."""

    rounds: dict[int, Timing] = dataclasses.field(default_factory=dict)  # of the slowest rank
    by_rank: list[dict[int, Timing]] = dataclasses.field(default_factory=list)
    transforms: list[dict[int, Timing]] = dataclasses.field(default_factory=list)  # part of by_rank: whole matrices


@dataclasses.dataclass(frozen=True)
class Pace:
    """The seconds that a core needs per byte of memory while all cores read or write."""

    read_s: float
    write_s: float  # of a byte written past the caches, in addition to reading

    @staticmethod
    def mean(paces: Collection[Pace]) -> Pace:
        """The mean of at least one."""
        return Pace(statistics.fmean(p.read_s for p in paces), statistics.fmean(p.write_s for p in paces))


@dataclasses.dataclass
class Findings:
    """The data for the report, the goals and the charts."""

    training: dict[str, dict[str, Training]] = dataclasses.field(default_factory=dict)
    breakdown: dict[str, dict[str, Breakdown]] = dataclasses.field(default_factory=dict)
    memory: dict[str, dict[str, Memory]] = dataclasses.field(default_factory=dict)
    collectives: dict[Call, dict[str, dict[int, Timing]]] = dataclasses.field(default_factory=dict)
    startup: dict[str, dict[int, Timing]] = dataclasses.field(default_factory=dict)  # seconds
    checkpoints: dict[str, dict[str, Saving]] = dataclasses.field(default_factory=dict)  # by operation
    restarts: dict[str, Restarts] = dataclasses.field(default_factory=dict)
    optimizers: dict[str, dict[str, dict[int, Timing]]] = dataclasses.field(default_factory=dict)  # ms
    muon: dict[str, Muon] = dataclasses.field(default_factory=dict)
    scaling: dict[str, dict[int, Scale]] = dataclasses.field(default_factory=dict)
    scaling_calls: dict[Call, dict[int, Timing]] = dataclasses.field(default_factory=dict)  # us
    # The pace of memory in the scaling suite, by round: around each call, and the mean over all calls
    # of a world size.
    call_paces: dict[Call, dict[int, Pace]] = dataclasses.field(default_factory=dict)
    world_paces: dict[int, dict[int, Pace]] = dataclasses.field(default_factory=dict)
    gpu: dict[str, dict[str, Gpu]] = dataclasses.field(default_factory=dict)
    gpu_name: str = ""
    hosts: Hosts = dataclasses.field(default_factory=Hosts)
    families: dict[str, str] = dataclasses.field(default_factory=dict)  # peer: its family
    dropped: list[str] = dataclasses.field(default_factory=list)  # repeated blocks, and the reason
    noisy: list[str] = dataclasses.field(default_factory=list)  # blocks kept although disturbed
    agreements: list[str] = dataclasses.field(default_factory=list)  # of loss curves
    warnings: list[str] = dataclasses.field(default_factory=list)

    def rounds(self, model: str, name: str) -> Rounds:
        """An entry's step times; empty if there are none."""
        found = self.training.get(model, {}).get(name)
        return found.rounds if found else {}

    def floor(self, model: str, names: tuple[str, ...]) -> str | None:
        """The floor with the lowest median among `names`; one for the whole run, so that no round picks its
        own lucky minimum."""
        known = [name for name in names if self.rounds(model, name)]
        return min(known, key=lambda n: medians(self.rounds(model, n)).median, default=None)

    def best_peer(self, model: str, family: str, without: tuple[str, ...] = ()) -> str | None:
        """The fastest variant of a family of peers by median."""
        known = [
            name
            for name in self.training.get(model, {})
            if self.families.get(name) == family and name not in without
        ]
        return min(known, key=lambda n: medians(self.rounds(model, n)).median, default=None)

    def slowdown(self, algorithm: str, name: str | None) -> Spread | None:
        """An entry's update over ours, round by round."""
        found = self.optimizers.get(algorithm, {})
        return ratio(found.get(name or "", {}), found.get("tessera", {}))

    def muon_ratio(self, above: str, below: str) -> Spread | None:
        """The ratio of the slowest ranks of two entries, round by round."""
        if above not in self.muon or below not in self.muon:
            return None
        return ratio(self.muon[above].rounds, self.muon[below].rounds)

    def fastest_libtorch(self, algorithm: str) -> str | None:
        """LibTorch's fastest variant by median."""
        found = self.optimizers.get(algorithm, {})
        return min((name for name in found if self.families.get(name) == "LibTorch"),
                   key=lambda name: medians(found[name]).median, default=None)

    def step_ratio(self, model: str, above: str | None, below: str | None) -> Spread | None:
        """Step time of `above` over that of `below`, round by round."""
        if above is None or below is None:
            return None
        return ratio(self.rounds(model, above), self.rounds(model, below))
