"""The traffic model's predictions for more ranks, next to the measurements."""

from __future__ import annotations

import dataclasses
import os
import statistics

from . import traffic
from .findings import Findings, Pace
from .spread import Rounds, Spread, medians
from .traffic import Traffic

_FLOOR = "local"


@dataclasses.dataclass(frozen=True)
class Expectation:
    """A measured number and the traffic model's prediction of it, medians of rounds. `floor`: the part that
    both contain, 0 if there is none. `ratio`: measured over predicted, taken round by round."""

    what: str
    world: int
    measured: float
    expected: float
    ratio: Spread
    unit: str
    floor: float = 0.0

    @property
    def off(self) -> float:
        """Relative distance of the measurement from the model."""
        return self.ratio.median - 1.0


def expectations(findings: Findings) -> list[Expectation]:
    """All numbers of the scaling suite that the model predicts.

    The pace at which a core reads and writes was measured in the same round just before and after,
    while all cores did the same. Only as many ranks as cores run at a time, and the others wait for a
    core. So a collective takes the time of its ranks' traffic divided by the cores, and a step costs
    the floor's CPU time in the same round plus its own traffic.
    """
    cores = len(os.sched_getaffinity(0))
    found = []
    for call, rounds in sorted(findings.scaling_calls.items(), key=lambda item: item[0]):
        moved = traffic.collective(call.op, call.world) * call.size_bytes
        moved *= max(1.0, call.world / cores)
        expected_us = {
            round_: moved_s(moved, pace) * 1e6 for round_, pace in findings.call_paces[call].items()
        }
        what = f"{call.op} {call.size_bytes >> 20} MiB"
        found.append(_compare(what, call.world, rounds, expected_us, "us"))
    floor = findings.scaling.get(_FLOOR, {})
    for strategy, by_world in findings.scaling.items():
        for world, scale in sorted(by_world.items()):
            if strategy == _FLOOR or world not in floor or world not in findings.world_paces:
                continue
            moved = traffic.strategy(strategy, world) * (4.0 * scale.parameters)
            alone = floor[world].cpu_ms
            expected_ms = {
                round_: alone[round_].median + moved_s(moved, pace) * 1e3
                for round_, pace in findings.world_paces[world].items()
            }
            found.append(_compare(strategy, world, scale.cpu_ms, expected_ms, "ms CPU",
                                  medians(alone).median))
    return found


def moved_s(moved: Traffic, pace: Pace) -> float:
    """The seconds in which a core moves these bytes."""
    return moved.reads * pace.read_s + moved.writes * pace.write_s


def _compare(what: str, world: int, measured: Rounds, expected: dict[int, float], unit: str,
             floor: float = 0.0) -> Expectation:
    ratios = Spread.of(measured[r].median / value for r, value in expected.items())
    return Expectation(what, world, medians(measured).median, statistics.median(expected.values()),
                       ratios, unit, floor)
