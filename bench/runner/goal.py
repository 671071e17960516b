"""The project's goals as a table, and whether a run reached them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from . import registry, scaling_model
from .findings import Call, Findings
from .spread import Spread, medians, ratio

Measure = Callable[[Findings], Spread | None]

_KIB = 1 << 10
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Goal:
    """`measure` must be at most, or at least, `bound`."""

    number: int
    name: str
    measure: Measure
    bound: float
    at_least: bool = False
    unit: str = ""

    def result(self, seen: Spread | None) -> str:
        """Returns "met", "missed" or "not measured", by the median."""
        if seen is None:
            return "not measured"
        met = seen.median >= self.bound if self.at_least else seen.median <= self.bound
        return "met" if met else "**missed**"


def over_floor(model: str, strategy: str) -> Measure:
    """Our step time over the lowest floor, PyTorch's or ours."""
    return lambda f: f.step_ratio(model, f"tessera {strategy}", f.floor(model, registry.FLOORS))


def own_floor(model: str) -> Measure:
    """Our step time without communication over PyTorch's lower floor."""
    return lambda f: f.step_ratio(model, registry.FLOORS[2], f.floor(model, registry.FLOORS[:2]))


def gain(model: str, family: str, strategy: str) -> Measure:
    """The fastest variant of a peer over ours."""
    return lambda f: f.step_ratio(model, f.best_peer(model, family), f"tessera {strategy}")


def collective_gain(world: int, op: str, size_bytes: int) -> Measure:
    """Gloo over ours in fp32."""

    def measure(findings: Findings) -> Spread | None:
        found = findings.collectives.get(Call(world, op, size_bytes, "f32"), {})
        return ratio(found.get("pytorch gloo", {}), found.get("tessera", {}))

    return measure


def barrier_us(world: int) -> Measure:
    """The microseconds of our barrier."""

    def measure(findings: Findings) -> Spread | None:
        found = findings.collectives.get(Call(world, "barrier", 0, "f32"), {}).get("tessera")
        return medians(found) if found else None

    return measure


def memory_ratio(model: str, ours: str, peer: str) -> Measure:
    """Our peak above idle over a peer's."""

    def measure(findings: Findings) -> Spread | None:
        found = findings.memory.get(model, {})
        if ours not in found or peer not in found:
            return None
        return Spread.of([found[ours].peak_above_idle_mib / found[peer].peak_above_idle_mib])

    return measure


def startup_seconds(name: str) -> Measure:
    """Seconds to the end of the first step."""

    def measure(findings: Findings) -> Spread | None:
        found = findings.startup.get(name)
        return medians(found) if found else None

    return measure


def restart_seconds(name: str) -> Measure:
    """Seconds from the death of a rank to the next step, beyond those of a start."""
    return lambda f: f.restarts[name].beyond() if name in f.restarts else None


def checkpoint_ratio(one: tuple[str, str], other: tuple[str, str]) -> Measure:
    """The time of an operation on checkpoints over that of another; each is an entry and its operation."""

    def measure(findings: Findings) -> Spread | None:
        saving, beside = (findings.checkpoints.get(entry, {}).get(what) for entry, what in (one, other))
        return ratio(saving.rounds, beside.rounds) if saving and beside else None

    return measure


def memory_share(algorithm: str) -> Measure:
    """A pass over as much memory relative to our update."""
    return lambda f: f.slowdown(algorithm, "memory")


def update_gain(algorithm: str) -> Measure:
    """LibTorch's fastest variant relative to our update."""
    return lambda f: f.slowdown(algorithm, f.fastest_libtorch(algorithm))


def eight_bit_cost(algorithm: str) -> Measure:
    """Our update with states in 8 bits relative to that in fp32."""
    return lambda f: f.slowdown(algorithm, registry.EIGHT_BITS)


def muon_share(one: str, other: str) -> Measure:
    """The ratio of two entries: updates by Muon, or the work that bounds them."""
    return lambda f: f.muon_ratio(one, other)


def model_error(unit: str) -> Measure:
    """The largest distance of the scaling suite's numbers in `unit` from the traffic model."""

    def measure(findings: Findings) -> Spread | None:
        found = [abs(e.off) for e in scaling_model.expectations(findings) if e.unit == unit]
        return Spread.of([max(found)]) if found else None

    return measure


def goals() -> list[Goal]:
    """All goals, in order."""
    found = []
    for model in "ABC":
        found += [
            Goal(1, f"{model}: local, over PyTorch's local", own_floor(model), 1.00),
            Goal(1, f"{model}: ddp over the floor", over_floor(model, "ddp"), 1.02),
            Goal(1, f"{model}: zero1 over the floor", over_floor(model, "zero1"), 1.00),
            Goal(1, f"{model}: zero2 over the floor", over_floor(model, "zero2"), 1.00),
            Goal(1, f"{model}: zero3 over the floor", over_floor(model, "zero3"), 1.06),
            Goal(1, f"{model}: FSDP2 over zero3", gain(model, "FSDP2", "zero3"),
                 2.0 if model == "C" else 1.4, at_least=True),
        ]
    found += [
        Goal(2, "S: ddp over the floor", over_floor("S", "ddp"), 1.05),
        Goal(2, "S: zero3 over the floor", over_floor("S", "zero3"), 1.15),
        Goal(2, "S: DDP over ddp", gain("S", "DDP", "ddp"), 1.5, at_least=True),
        Goal(2, "S: FSDP2 over zero3", gain("S", "FSDP2", "zero3"), 3.5, at_least=True),
        Goal(2, "MLP: DDP over ddp", gain("MLP", "DDP", "ddp"), 5.0, at_least=True),
    ]
    for world in (2, 4):
        for op in ("all_reduce", "all_gather", "reduce_scatter"):
            for label, size in (("64 KiB", 64 * _KIB), ("1 MiB", _MIB), ("16 MiB", 16 * _MIB),
                                ("64 MiB", 64 * _MIB)):
                bound = 8.0 if world == 4 or size == 64 * _MIB else 15.0
                name = f"{world} ranks: Gloo over ours, {op} {label}"
                found.append(Goal(3, name, collective_gain(world, op, size), bound, at_least=True))
    found += [
        Goal(3, "barrier of two ranks, spinning", barrier_us(2), 1.0, unit=" us"),
        Goal(3, "barrier of four ranks, on futex", barrier_us(4), 10.0, unit=" us"),
        Goal(4, "C: memory of zero3 over FSDP2",
             memory_ratio("C", "tessera zero3", "pytorch fsdp2"), 0.45),
        Goal(4, "C: memory of zero3 over FSDP2 with mmap_threshold 1 MiB",
             memory_ratio("C", "tessera zero3", "pytorch fsdp2, mmap_threshold 1 MiB"), 1.00),
        Goal(4, "C: memory of zero2 over DDP",
             memory_ratio("C", "tessera zero2", "pytorch ddp"), 0.60),
        Goal(6, "tessera-run to the end of the first step of A, zero3",
             startup_seconds("tessera-run, zero3"), 2.0, unit=" s"),
        Goal(6, "tessera-run to the end of the first step of A, ddp",
             startup_seconds("tessera-run, ddp"), 2.0, unit=" s"),
        Goal(7, "1 to 8 ranks, CPU time per rank and step of A: largest distance from the model",
             model_error("ms CPU"), 0.20),
        Goal(7, "2 to 8 ranks, collectives of 64 MiB: largest distance from the model",
             model_error("us"), 0.20),
        Goal(8, "zero3: a plain write over a save",
             checkpoint_ratio(("tessera zero3", "write"), ("tessera zero3", "save")), 0.9, at_least=True),
        Goal(8, "zero3: a plain write over a load",
             checkpoint_ratio(("tessera zero3", "write"), ("tessera zero3", "load")), 0.9, at_least=True),
        Goal(8, "zero3: torch.distributed.checkpoint's save over ours",
             checkpoint_ratio(("pytorch fsdp2", "save"), ("tessera zero3", "save")), 2.0, at_least=True),
        Goal(8, "zero3: torch.distributed.checkpoint's load over ours",
             checkpoint_ratio(("pytorch fsdp2", "load"), ("tessera zero3", "load")), 2.0, at_least=True),
        Goal(8, "zero3: the stall of a background save over one memcpy",
             checkpoint_ratio(("tessera zero3", "stall"), ("tessera zero3", "copy")), 1.2),
    ]
    for algorithm in ("adamw", "lion", "sgd"):
        found += [
            Goal(9, f"{algorithm}: a pass over as much memory over the update", memory_share(algorithm), 0.9,
                 at_least=True),
            Goal(9, f"{algorithm}: LibTorch's update over ours", update_gain(algorithm), 1.5, at_least=True),
        ]
    found += [
        Goal(9, f"{algorithm}: states in 8 bits over fp32", eight_bit_cost(algorithm), 1.3)
        for algorithm in ("adamw", "lion")
    ]
    found.append(Goal(9, "muon: zero2 on two ranks over one rank, a thread each",
                      muon_share(registry.MUON_SPLIT, registry.MUON_ALONE), 0.6))
    found += [Goal(11, f"{strategy}: from the death of a rank to the next step, beyond a start",
                   restart_seconds(f"tessera {strategy}"), 2.0, unit=" s") for strategy in ("ddp", "zero3")]
    return found
