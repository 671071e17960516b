"""What all suites share."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from pathlib import Path

from . import against, registry
from .entry import Entry
from .workers import Workers
from .disturbance import Disturbance, Limits
from .findings import Findings
from .journal import Journal


@dataclasses.dataclass
class Bench:
    """One run: what was asked for, where things lie, and what was found so far."""

    programs: registry.Programs
    text: Path
    logs: Path
    journal: Journal
    blocks: int = 5
    quick: bool = False
    pinned: bool = True
    ranks: int = registry.RANKS
    wanted: str = ""  # expression that an entry's name must match
    against: Path | None = None  # another build, whose programs take turns with ours
    start_timeout_s: float = 120.0
    limits: Limits = Limits()
    findings: Findings = dataclasses.field(default_factory=Findings)
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def starts_anew(self) -> bool:
        """Whether ranks start anew for each round. Where memory lies changes times by as much as builds
        do, for as long as a process lives: only starts are independent."""
        return self.against is not None

    def say(self, text: str) -> None:
        """A line of progress on stderr."""
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def chosen(self, entries: list[Entry]) -> list[Entry]:
        """Those that the user asked for; notes the families of peers."""
        chosen = [c for c in entries if re.search(self.wanted, c.name)]
        if self.against:
            chosen = against.beside(chosen, self.programs.build, self.against)
        self.findings.families.update((c.name, c.family) for c in chosen if c.family)
        return chosen

    def start(self, entry: Entry, suite: str, world: int | None = None) -> Workers:
        """Starts all ranks; does not wait for them."""
        return Workers(entry, world or self.ranks, self.logs / suite, self.pinned)

    def leave(self, workers: Workers) -> None:
        """Ends workers; one that does not leave in order is noted, its numbers stand."""
        problem = workers.quit()
        if problem:
            self.say(f"warning: {problem}")
            self.findings.warnings.append(problem.splitlines()[0])

    def disturbed(self, what: str, reason: str, again: bool, busiest: str) -> None:
        """Notes a block that was dropped, or kept because it was the last try."""
        (self.findings.dropped if again else self.findings.noisy).append(f"{what}: {reason}")
        end = "again" if again else "kept"
        self.say(f"{what}: {reason}; {end}; busiest other process: {busiest}")


def noise_record(seen: Disturbance) -> dict[str, float]:
    """The disturbance as fields of a journal's line; names no process."""
    return {k: v for k, v in dataclasses.asdict(seen).items() if k != "busiest"}
