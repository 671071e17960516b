"""What the traffic model expects of more ranks, next to what was measured."""

from __future__ import annotations

import dataclasses
import os

from . import traffic
from .findings import Findings

_CALIBRATION_WORLD = 4
_CALIBRATION_OP = "all_reduce"
_FLOOR = "local"


@dataclasses.dataclass(frozen=True)
class Expectation:
    """One measured number and the model's. `floor`: what both have in common, 0 if nothing."""

    what: str
    world: int
    measured: float
    expected: float
    unit: str
    floor: float = 0.0

    @property
    def off(self) -> float:
        """Relative distance of the measurement from the model."""
        return self.measured / self.expected - 1.0


def bandwidth(findings: Findings) -> float | None:
    """Bytes per second of all ranks together, from one collective; None if it was not measured."""
    for call, timing in findings.scaling_calls.items():
        if call.op == _CALIBRATION_OP and call.world == _CALIBRATION_WORLD:
            moved = call.world * traffic.collective(call.op, call.world) * call.size_bytes
            return moved / (timing.median * 1e-6)
    return None


def expectations(findings: Findings) -> list[Expectation]:
    """All numbers of the scaling suite that the model speaks about, but the calibration's own.

    As many ranks as there are cores run at a time and share the bandwidth; the others wait for a
    core. So a collective lasts as long as the bytes of all ranks take, and a rank's own bytes cost
    it CPU time at its share of the bandwidth.
    """
    total = bandwidth(findings)
    if total is None:
        return []
    cores = len(os.sched_getaffinity(0))
    found = []
    for call, timing in sorted(findings.scaling_calls.items(), key=lambda item: item[0]):
        if call.world < 2 or (call.op, call.world) == (_CALIBRATION_OP, _CALIBRATION_WORLD):
            continue
        moved = call.world * traffic.collective(call.op, call.world) * call.size_bytes
        found.append(
            Expectation(f"{call.op} {call.size_bytes >> 20} MiB", call.world, timing.median,
                        moved / total * 1e6, "us")
        )
    floor = findings.scaling.get(_FLOOR, {})
    for strategy, by_world in findings.scaling.items():
        for world, scale in sorted(by_world.items()):
            if strategy == _FLOOR or world < 2 or world not in floor:
                continue
            moved = traffic.strategy(strategy, world) * 4.0 * scale.parameters
            extra_ms = moved / (total / min(world, cores)) * 1e3
            alone_ms = floor[world].cpu_ms
            found.append(Expectation(strategy, world, scale.cpu_ms, alone_ms + extra_ms, "ms CPU",
                                     alone_ms))
    return found
