"""The findings of the hosts suite."""

from __future__ import annotations

import dataclasses
import statistics

from .spread import Rounds, Spread, Timing, medians, ratio
from .two_hosts import HOSTS, LINKS, Link

FLOORS = ("pytorch local, mmap_max 0", "tessera local")


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """Two hosts with `per_host` ranks each, and the link between them."""

    per_host: int
    link: str  # its name

    @property
    def name(self) -> str:
        return f"{HOSTS} x {self.per_host}, {self.link}"

    def wire_ms(self, sent_bytes: float) -> float:
        """The milliseconds for sending so many bytes in one direction."""
        link, = (known for known in LINKS if known.name == self.link)
        return link.wire_ms(sent_bytes)


def place(per_host: int, link: Link) -> Place:
    """The place whose hosts are joined by `link`."""
    return Place(per_host, link.name)


@dataclasses.dataclass
class Hosted:
    """One entry that trains on two hosts."""

    rounds: dict[int, Timing] = dataclasses.field(default_factory=dict)  # ms per step
    sent_bytes: list[float] = dataclasses.field(default_factory=list)  # of the host that sent most, per step

    @property
    def mean_sent_bytes(self) -> float:
        return statistics.fmean(self.sent_bytes)


@dataclasses.dataclass
class Hosts:
    """The findings for model A."""

    parameters: int = 0
    found: dict[Place, dict[str, Hosted]] = dataclasses.field(default_factory=dict)
    # By ranks per host: milliseconds from the start of a step until all ranks have the first bucket of
    # gradients, under ddp.
    first_bucket_ms: dict[int, Spread] = dataclasses.field(default_factory=dict)

    def rounds(self, at: Place, name: str) -> Rounds:
        """An entry's step times; empty if there are none."""
        found = self.found.get(at, {}).get(name)
        return found.rounds if found else {}

    def floor(self, at: Place) -> str | None:
        """The lower floor by median."""
        known = [name for name in FLOORS if self.rounds(at, name)]
        return min(known, key=lambda name: medians(self.rounds(at, name)).median, default=None)

    def ratio(self, at: Place, above: str | None, below: str) -> Spread | None:
        """Step time over step time, round by round."""
        return ratio(self.rounds(at, above or ""), self.rounds(at, below))

    def bound(self, at: Place, sent_bytes: float) -> Rounds:
        """A lower bound of the step time of any ddp, by round: the floor, or the time to the first bucket plus
        the time for `sent_bytes` on the wire, whichever is longer."""
        floor, first = self.floor(at), self.first_bucket_ms.get(at.per_host)
        if floor is None or first is None:
            return {}
        wired_ms = first.median + at.wire_ms(sent_bytes)
        return {round_: Timing(max(timing.median, wired_ms), max(timing.minimum, wired_ms))
                for round_, timing in self.rounds(at, floor).items()}
