"""The common state of all suites."""

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
    """One run: its options, its folders, and its findings so far."""

    programs: registry.Programs
    text: Path
    logs: Path
    journal: Journal
    blocks: int = 5
    quick: bool = False
    pinned: bool = True
    ranks: int = registry.RANKS
    wanted: str = ""  # expression that an entry's name must match
    against: Path | None = None  # another build, whose programs alternate with ours
    start_timeout_s: float = 120.0
    limits: Limits = Limits()
    findings: Findings = dataclasses.field(default_factory=Findings)
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def starts_anew(self) -> bool:
        """Whether ranks restart for each round. The addresses of a process's memory change its times by as much
        as a build does, and stay the same for its whole life. So only separate starts are independent."""
        return self.against is not None

    def say(self, text: str) -> None:
        """Prints a line of progress on stderr."""
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def chosen(self, entries: list[Entry]) -> list[Entry]:
        """The entries that the user asked for; records the families of peers."""
        chosen = [c for c in entries if re.search(self.wanted, c.name)]
        if self.against:
            chosen = against.beside(chosen, self.programs.build, self.against)
        self.findings.families.update((c.name, c.family) for c in chosen if c.family)
        return chosen

    def start(self, entry: Entry, suite: str, world: int | None = None) -> Workers:
        """Starts all ranks; does not wait for them."""
        return Workers(entry, world or self.ranks, self.logs / suite, self.pinned)

    def leave(self, workers: Workers) -> None:
        """Ends workers; an abnormal end is recorded, but its numbers are kept."""
        problem = workers.quit()
        if problem:
            self.say(f"warning: {problem}")
            self.findings.warnings.append(problem.splitlines()[0])

    def disturbed(self, what: str, reason: str, again: bool, busiest: str) -> None:
        """Records a block that was dropped, or kept because it was the last try."""
        (self.findings.dropped if again else self.findings.noisy).append(f"{what}: {reason}")
        end = "again" if again else "kept"
        self.say(f"{what}: {reason}; {end}; busiest other process: {busiest}")


def noise_record(seen: Disturbance) -> dict[str, float]:
    """The disturbance as fields of a journal's line, without process names."""
    return {k: v for k, v in dataclasses.asdict(seen).items() if k != "busiest"}
