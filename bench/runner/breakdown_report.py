"""The report's section on the parts of a step, and its chart."""

from __future__ import annotations

import statistics

from . import registry, traffic
from .chart import Stack, stacks
from .findings import Breakdown, Findings
from .markdown import table
from .model import MODELS
from .spread import Spread
from .trace_rows import ROWS
from .training_report import cell

_MODELLED = ("reduce", "update", "updates", "gather")

# Parts of a bar: name, colour, rows.
_PARTS = (
    ("forward, backward", 4, ("forward", "backward")),
    ("gather", 0, ("gather",)),
    ("reduce", 1, ("reduce",)),
    ("update", 2, ("update",)),
    ("updates", 3, ("updates",)),
    ("waiting, vote, rest", 5, ("wait", "vote", "rest")),
)
_UNDIVIDED = 6


def text(findings: Findings, ranks: int) -> str:
    """Tables of all models."""
    parts = [_model(findings, model, ranks) for model, found in findings.breakdown.items() if found]
    if not parts:
        return ""
    return (
        "Milliseconds per rank and step from the traces: mean over ranks and over the middle half "
        "of the steps, of the round with the median step (of an even number, the faster of the "
        "two), so that the columns from forward to rest add up to it. *wait*: for the other ranks "
        "in updates and vote; at the end of backward it counts as reduce. The floor keeps no trace.\n\n" + "\n".join(parts)
    )


def _model(findings: Findings, model: str, ranks: int) -> str:
    found = findings.breakdown[model]
    head = ["strategy", "step, ms [range]", "over the floor [range]", *ROWS,
            "page faults", "CPU ms"]
    rows = []
    for name, one in found.items():
        middle = _rows(one)
        steps = Spread.of(sum(rows.values()) for rows in one.rounds.values())
        values = ["-" if name in registry.FLOORS else f"{middle[row]:.2f}" for row in ROWS]
        rows.append([_short(name), steps.text(), cell(over_floor(findings, model, name)), *values,
                     f"{statistics.median(one.faults):,.1f}", f"{statistics.median(one.cpu_ms):.1f}"])
    parts = f"### Model {model}\n\n{MODELS[model].shape}.\n\n" + table(head, rows)
    expected = _expected(found, ranks)
    if expected:
        parts += "\n" + expected
    return parts


def _expected(found: dict[str, Breakdown], ranks: int) -> str:
    """The traffic model's times, at the bandwidth that ddp's update reaches."""
    ddp = found.get("tessera ddp")
    if ddp is None or not ddp.parameters or _rows(ddp)["update"] <= 0:
        return ""
    bytes_per_part = 4.0 * ddp.parameters
    updated = traffic.parts("ddp", ranks)["update"].total * bytes_per_part
    bandwidth = updated / _rows(ddp)["update"]  # bytes per ms
    rows = []
    for name, one in found.items():
        if name in registry.FLOORS:
            continue
        expected = traffic.parts(_short(name), ranks)
        middle = _rows(one)
        rows.append([_short(name), *(
            f"{middle[row]:.2f} / {expected[row].total * bytes_per_part / bandwidth:.2f}"
            if row in expected else "-" for row in _MODELLED)])
    return (
        f"Measured / by the traffic model, ms, at the {bandwidth / 1e6:.1f} GB/s per rank that the "
        "update of ddp reaches:\n\n" + table(["strategy", *_MODELLED], rows)
    )


def over_floor(findings: Findings, model: str, name: str) -> Spread | None:
    """Step time over the floor's, round by round."""
    found = findings.breakdown.get(model, {})
    floor = found.get("tessera local")
    if floor is None or name not in found:
        return None
    both = sorted(found[name].rounds.keys() & floor.rounds.keys())
    if not both:
        return None
    return Spread.of(
        sum(found[name].rounds[r].values()) / sum(floor.rounds[r].values()) for r in both)


def chart(findings: Findings, machine: str) -> str | None:
    """Stacked bars over the floor."""
    groups = []
    for model, found in findings.breakdown.items():
        floor = found.get("tessera local")
        if floor is None or not floor.rounds:
            continue
        floor_ms = sum(_rows(floor).values())
        group = []
        for name, one in found.items():
            middle = _rows(one)
            if name in registry.FLOORS:
                pieces = [(1.0, _UNDIVIDED)]
            else:
                pieces = [(sum(middle[row] for row in rows) / floor_ms, colour)
                          for _, colour, rows in _PARTS]
            ms = sum(middle.values())
            group.append(Stack(_short(name), pieces, f"{ms / floor_ms:.2f} ({ms:.1f} ms)"))
        groups.append((f"Model {model}", group))
    if not groups:
        return None
    legend = [(name, colour) for name, colour, _ in _PARTS]
    legend.append(("floor, with its update", _UNDIVIDED))
    description = f"{machine}. Two ranks. The round with the median step."
    return stacks("Where the time of a step goes", description, groups, legend,
                  "time / step of the floor (no communication)", mark=1.0)


def _rows(one: Breakdown) -> dict[str, float]:
    """The rows of the round with the median step, so that they add up."""
    ordered = sorted(one.rounds.values(), key=lambda rows: sum(rows.values()))
    return ordered[(len(ordered) - 1) // 2]


def _short(name: str) -> str:
    return name.removeprefix("tessera ")
