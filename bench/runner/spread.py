"""A number with its range over rounds, and ratios taken round by round."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median and range. For a ratio of two entries, `of_minima` is the ratio of their smallest times."""

    median: float
    low: float
    high: float
    of_minima: float | None = None

    @staticmethod
    def of(values: Iterable[float], of_minima: float | None = None) -> Spread:
        """The spread of at least one value."""
        known = list(values)
        return Spread(statistics.median(known), min(known), max(known), of_minima)

    def text(self, digits: int = 2) -> str:
        """For example "1.02 [1.00..1.05]"; without a range if there is none."""
        if self.low == self.high:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}..{self.high:.{digits}f}]"


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of one block, in one unit."""

    median: float
    minimum: float


Rounds = Mapping[int, Timing]  # by round


def ratios(above: Rounds, below: Rounds) -> list[float]:
    """`above`/`below` for each round that both have, in order."""
    return [above[r].median / below[r].median for r in sorted(above.keys() & below.keys())]


def ratio(above: Rounds, below: Rounds) -> Spread | None:
    """`above`/`below` for each round that both have, and the ratio of the minima; None without any round."""
    shared = above.keys() & below.keys()
    if not shared:
        return None
    return Spread.of(
        ratios(above, below),
        min(above[r].minimum for r in shared) / min(below[r].minimum for r in shared),
    )


def medians(rounds: Rounds) -> Spread:
    """The spread of the blocks' medians."""
    return Spread.of(timing.median for timing in rounds.values())
