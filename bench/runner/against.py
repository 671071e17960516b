"""Compares two builds of Tessera in turns and shows where the first is slower."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from .entry import Entry, Role
from .findings import Findings
from .markdown import table
from .spread import Rounds, ratios

SUITES = ("hosts", "collectives", "startup", "train", "checkpoint")
ROUNDS = 9
BOUND = 1.03
_SUFFIX = ", against"
_CONFIDENCE = 0.95


def beside(entries: Sequence[Entry], build: Path, against: Path) -> list[Entry]:
    """Our entries of `build`, each followed by the same entry of `against`."""
    found = []
    for entry in entries:
        if entry.role is not Role.OURS:
            continue
        command = tuple(_moved(part, build, against) for part in entry.command)
        found += [entry, dataclasses.replace(entry, name=entry.name + _SUFFIX, command=command)]
    return found


def _moved(part: str, build: Path, against: Path) -> str:
    path = Path(part)
    return str(against / path.relative_to(build)) if path.is_relative_to(build) else part


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Returns two of `values` between which the median lies with 95 % confidence: of nine values the second
    and the eighth (96 %). None for fewer than six values."""
    ordered = sorted(values)
    n = len(ordered)
    outside, left_out = 2 * 0.5**n, 0
    if outside > 1 - _CONFIDENCE:
        return None
    while outside + 2 * math.comb(n, left_out + 1) * 0.5**n <= 1 - _CONFIDENCE:
        left_out += 1
        outside += 2 * math.comb(n, left_out) * 0.5**n
    return ordered[left_out], ordered[n - 1 - left_out]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One measurement: for each round, the first build's time over the second build's."""

    what: str
    ratios: list[float]

    @property
    def is_miss(self) -> bool:
        """Slower by more than the bound, and not by chance."""
        known = interval(self.ratios)
        return known is not None and known[0] > BOUND

    def row(self) -> list[str]:
        known = interval(self.ratios)
        verdict = "**miss**" if self.is_miss else "held" if known else "too few rounds"
        return [self.what, f"{statistics.median(self.ratios):.3f}",
                f"{known[0]:.3f}..{known[1]:.3f}" if known else "", str(len(self.ratios)), verdict]


def comparisons(findings: Findings) -> list[Comparison]:
    """Compares everything that both builds did."""
    return [Comparison(what, ratios(rounds[name], rounds[name + _SUFFIX]))
            for what, name, rounds in _measured(findings) if name + _SUFFIX in rounds]


def _measured(findings: Findings) -> Iterator[tuple[str, str, dict[str, Rounds]]]:
    """Yields for each entry in each measurement: a name for the two together, the entry's name, and the rounds
    of all entries in that measurement, by name."""
    groups: list[tuple[str, dict[str, Rounds]]] = []
    for place, hosted in sorted(findings.hosts.found.items()):
        groups.append((place.name, {name: found.rounds for name, found in hosted.items()}))
    for call, calls in findings.collectives.items():
        size = f" {call.size_bytes >> 10} KiB {call.dtype}" if call.size_bytes else ""
        groups.append((f"{call.world} ranks, {call.op}{size}", dict(calls)))
    if findings.startup:
        groups.append(("start", dict(findings.startup)))
    for model, entries in findings.training.items():
        groups.append((f"model {model}", {name: found.rounds for name, found in entries.items()}))
    for what in dict.fromkeys(what for found in findings.checkpoints.values() for what in found):
        done = {name: found[what].rounds for name, found in findings.checkpoints.items() if what in found}
        groups.append((f"checkpoint, {what}", done))
    for group, rounds in groups:
        for name in rounds:
            yield f"{group}: {name}", name, rounds


def write(found: Sequence[Comparison], command: str, place: str) -> str:
    """The page."""
    misses = sum(comparison.is_miss for comparison in found)
    return (f"# Two builds\n\n`{command}`, {place}. Median ratio of times, the first build over the second, taken "
            f"round by round; a miss is one whose 95 % interval lies above {BOUND}. "
            f"{misses} of {len(found)} are misses.\n\n"
            + table(["what", "median", "95 % interval", "rounds", ""], [c.row() for c in found]))
