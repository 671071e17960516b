"""Draws the charts of a run."""

from __future__ import annotations

from typing import Any

from . import breakdown_report, goal, registry, scaling_model
from .chart import Bar, Line, bars, lines
from .findings import Findings
from .spread import Spread, medians

_OURS, _PEER, _THREADS, _FLOOR, _TOLD = 0, 1, 2, 4, 5
_OPS = ("all_reduce", "all_gather", "reduce_scatter")


def draw(findings: Findings, machine: str) -> dict[str, str]:
    """Maps file names to SVG, for everything that was measured."""
    found = {
        "step-time.svg": _step_time(findings, machine),
        "breakdown.svg": breakdown_report.chart(findings, machine),
        "memory.svg": _memory(findings, machine),
        "collectives.svg": _collectives(findings, machine),
        "scaling.svg": _scaling(findings, machine),
    }
    return {name: svg for name, svg in found.items() if svg}


def colour(findings: Findings, name: str) -> int:
    """The colour of an entry in training."""
    if name in registry.FLOORS:
        return _FLOOR
    if name == registry.THREADS:
        return _THREADS
    return _PEER if name in findings.families else _OURS


LEGEND = [("Tessera", _OURS), ("PyTorch", _PEER), ("one process, two threads", _THREADS),
          ("no communication", _FLOOR)]


def legend(names: list[tuple[str, int]], groups: list[tuple[str, list[Any]]]) -> list[tuple[str, int]]:
    """The entries whose colour occurs in one of the groups of rows."""
    shown = {row.colour for _, rows in groups for row in rows}
    return [(name, shade) for name, shade in names if shade in shown]


def _step_time(findings: Findings, machine: str) -> str | None:
    groups = []
    for model, found in findings.training.items():
        floor = findings.floor(model, registry.FLOORS)
        group = []
        for name in found:
            over = findings.step_ratio(model, name, floor)
            if over is not None:
                group.append(Bar(name, over, colour(findings, name), f"{over.median:.2f}"))
        groups.append((f"Model {model}", group))
    if not groups:
        return None
    return bars("Step time over the floor", f"Two ranks. {machine}. Median and range of rounds.",
                groups, legend(LEGEND, groups), "step time / step time without communication", mark=1.0)


def _memory(findings: Findings, machine: str) -> str | None:
    groups = []
    for model, found in findings.memory.items():
        group = []
        for name, memory in found.items():
            mib = memory.peak_above_idle_mib
            shade = _TOLD if "mmap" in name else colour(findings, name)
            group.append(Bar(name, Spread(mib, mib, mib), shade, f"{mib:,.0f}"))
        groups.append((f"Model {model}", group))
    if not groups:
        return None
    told = ("PyTorch, malloc set by the environment", _TOLD)
    return bars("Memory per rank while training", f"Two ranks. {machine}. Highest of 10 steps.",
                groups, legend([*LEGEND, told], groups), "MiB of private and shared memory above the idle process")


def size_text(size_bytes: int) -> str:
    """"64 KiB", "16 MiB"."""
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


def _collectives(findings: Findings, machine: str) -> str | None:
    groups = []
    worlds = sorted({call.world for call in findings.collectives})
    for world in worlds:
        for op in _OPS:
            group = []
            for call in sorted(c for c in findings.collectives
                               if (c.world, c.op, c.dtype) == (world, op, "f32")):
                seen = goal.collective_gain(world, op, call.size_bytes)(findings)
                if seen is not None:
                    label = f"{seen.median:.1f}x"
                    group.append(Bar(size_text(call.size_bytes), seen, worlds.index(world), label))
            if group:
                groups.append((f"{op}, {world} ranks", group))
    if not groups:
        return None
    legend = [(f"{world} ranks", index) for index, world in enumerate(worlds)]
    return bars("Collectives: times as fast as Gloo", f"fp32. {machine}. Median and range of rounds.",
                groups, legend, "time of Gloo / time of Tessera", mark=1.0, logarithmic=True)


def _scaling(findings: Findings, machine: str) -> str | None:
    if not findings.scaling:
        return None
    series = []
    expected = scaling_model.expectations(findings)
    for colour, (strategy, by_world) in enumerate(findings.scaling.items()):
        shade = _FLOOR if strategy == "local" else colour - 1 if colour else 0
        points = [(float(world), medians(scale.cpu_ms).median) for world, scale in sorted(by_world.items())]
        series.append(Line(strategy, points, shade))
        model = [(float(e.world), e.expected) for e in expected if e.what == strategy]
        if model:
            series.append(Line(strategy, model, shade, dashed=True))
    worlds = sorted({w for by_world in findings.scaling.values() for w in by_world})
    return lines("CPU time per rank and step", f"Model A. {machine}. Dashed: the traffic model.",
                 series, "ranks, one thread each", "ms", [(float(w), str(w)) for w in worlds])
