"""Divides the time of each step of a trace into rows that add up to the step.

A trace has adjacent spans of forward and backward, and spans of the engine's work inside and between
them. Every instant of a step is counted once: for its collective, gather or update if there is one,
otherwise for forward or backward, otherwise for the rest. This is exact if communication runs inside
the calls, which is the case if each rank has its own core. If communication runs in other threads,
overlapping time counts as communication.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .failure import BenchFailure

# `wait`: for other ranks in updates and vote. Ranks do not wait inside backward: reductions are
# posted, and their spans last as long as their rank worked on them; at the end of backward, waiting
# counts as reduce.
ROWS = ("forward", "backward", "gather", "reduce", "update", "updates", "vote", "wait", "rest")

_MEETINGS = ("updates", "vote")  # no rank leaves before all have come

Rows = dict[str, float]  # ms by row


@dataclasses.dataclass(frozen=True)
class _Span:
    """Times in ms."""

    row: str
    name: str
    begin: float
    end: float


def read(path: Path) -> list[list[Rows]]:
    """The rows of each step, by rank. Throws BenchFailure if the file is not a trace of whole steps."""
    steps = _steps_by_rank(path)
    together = [_step_of_all(by_rank) for by_rank in zip(*steps, strict=True)]
    return [list(of_rank) for of_rank in zip(*together, strict=True)]


def _steps_by_rank(path: Path) -> list[list[_Step]]:
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        ranks: dict[int, list[_Span]] = {}
        for event in events:
            if event["ph"] == "X":
                ranks.setdefault(int(event["pid"]), []).append(_span(event))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchFailure(f"{path}: not a trace: {error!r}") from error
    if not ranks or sorted(ranks) != list(range(len(ranks))):
        raise BenchFailure(f"{path}: has spans of the ranks {sorted(ranks)}, expected 0, 1, ...")
    steps = [_steps(ranks[rank]) for rank in sorted(ranks)]
    if len({len(of_rank) for of_rank in steps}) != 1 or not steps[0]:
        raise BenchFailure(f"{path}: ranks have {[len(s) for s in steps]} steps, expected as many each")
    return steps


def first_reductions(path: Path) -> list[float]:
    """For each step, ms from the start of its forward until the last rank has begun to reduce its first
    bucket. Steps without reduction are left out."""
    found: list[float] = []
    for by_rank in zip(*_steps_by_rank(path), strict=True):
        firsts = [min((s.begin for s in step.spans if s.row == "reduce"), default=None) for step in by_rank]
        waits = [first - step.begin for first, step in zip(firsts, by_rank, strict=True) if first is not None]
        if waits:
            found.append(max(waits))
    return found


def typical(steps: Sequence[Rows]) -> Rows:
    """The mean over the middle half of the steps by their length; these rows still add up."""
    ordered = sorted(steps, key=lambda rows: sum(rows.values()))
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return mean(middle)


def mean(rows: Sequence[Rows]) -> Rows:
    """The mean of each row."""
    return {name: sum(one[name] for one in rows) / len(rows) for name in ROWS}


def _span(event: dict[str, Any]) -> _Span:
    track, name = str(event["cat"]), str(event["name"])
    begin = float(event["ts"]) * 1e-3
    row = {"compute": name, "optimizer": "update"}.get(track, track)
    return _Span(row, name, begin, begin + float(event["dur"]) * 1e-3)


@dataclasses.dataclass(frozen=True)
class _Step:
    begin: float
    end: float
    spans: list[_Span]


def _steps(spans: list[_Span]) -> list[_Step]:
    """A step lasts from the start of a forward to the start of the next."""
    spans = sorted(spans, key=lambda span: span.begin)
    begins = [span.begin for span in spans if span.row == "forward"]
    if not begins:
        return []
    ends = [*begins[1:], max(span.end for span in spans)]
    found = []
    for begin, end in zip(begins, ends, strict=True):
        inside = [s for s in spans if begin <= s.begin < end]
        turn = max((s.end for s in inside if s.row in ("forward", "backward")), default=begin)
        # After backward only new parameters are gathered.
        inside = [
            dataclasses.replace(s, row="updates") if s.row == "gather" and s.begin >= turn else s
            for s in inside
        ]
        found.append(_Step(begin, end, inside))
    return found


def _step_of_all(by_rank: Sequence[_Step]) -> list[Rows]:
    """The rows of one step for each rank; a rank that came early to a meeting has waited."""
    found = [_rows(step) for step in by_rank]
    for row in _MEETINGS:
        meetings = [_outer(s for s in step.spans if s.row == row) for step in by_rank]
        names = [[span.name for span in of_rank] for of_rank in meetings]
        if any(one != names[0] for one in names):
            continue  # these ranks met over different things and cannot be compared
        for together in zip(*meetings, strict=True):
            shortest = min(span.end - span.begin for span in together)
            for rows, span in zip(found, together, strict=True):
                waited = span.end - span.begin - shortest
                rows[row] -= waited
                rows["wait"] += waited
    return found


def _rows(step: _Step) -> Rows:
    rows = dict.fromkeys(ROWS, 0.0)
    covered: list[tuple[float, float]] = []
    length = 0.0
    for row in ("vote", "update", "reduce", "updates", "gather", "forward", "backward"):
        covered = _union([*covered, *((s.begin, min(s.end, step.end))
                                      for s in step.spans if s.row == row)])
        before, length = length, sum(end - begin for begin, end in covered)
        rows[row] = length - before
    rows["rest"] = step.end - step.begin - length
    return rows


def _outer(spans: Iterable[_Span]) -> list[_Span]:
    """Leaves out spans that lie inside an earlier one."""
    found: list[_Span] = []
    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        if not found or span.begin >= found[-1].end:
            found.append(span)
    return found


def _union(pieces: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin, end in sorted(pieces):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def steps_after(by_rank: Sequence[Sequence[Rows]], skipped: int) -> list[Rows]:
    """The mean over ranks of each step from number `skipped` on."""
    return [mean(ranks) for ranks in itertools.islice(zip(*by_rank, strict=True), skipped, None)]
