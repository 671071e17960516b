"""The activity of the rest of the machine while a block ran."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """Shares of all cores' time, and involuntary context switches of the entry per second."""

    steal: float  # taken by the hypervisor
    foreign: float  # used by processes other than the entry's
    switches_per_s: float
    busiest: str = ""  # of the other processes; only for the terminal


@dataclasses.dataclass(frozen=True)
class Limits:
    """A block above one of these limits is dropped and repeated."""

    steal: float = 0.05
    foreign: float = 0.10
    # Threads of one entry take the core from each other, so only an unusual number of switches is
    # noise.
    switches_per_s: float = 300.0
    switches_factor: float = 4.0

    def broken_by(self, seen: Disturbance, usual_switches_per_s: float) -> str | None:
        """Returns the limit that was exceeded, or None. `usual_...`: the fewest for this entry so far."""
        if seen.steal > self.steal:
            return f"steal {seen.steal:.1%}"
        if seen.foreign > self.foreign:
            return f"other processes {seen.foreign:.1%}"
        if seen.switches_per_s > max(
            self.switches_per_s, self.switches_factor * usual_switches_per_s
        ):
            return f"{seen.switches_per_s:.0f} involuntary switches/s"
        return None


class Watch:
    """Counts from its construction until `stop()`. Reads only /proc."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._others = self._other_ticks()
        self._begin = self._counts()

    def stop(self) -> Disturbance:
        """Returns the activity since construction."""
        steal, busy, own, switches, now = (
            after - before for before, after in zip(self._begin, self._counts(), strict=True)
        )
        cores = os.cpu_count() or 1
        capacity = max(now, 1e-6) * cores / _TICK_S
        return Disturbance(
            steal=steal / capacity,
            foreign=max(0.0, busy - own) / capacity,
            switches_per_s=switches / max(now, 1e-6),
            busiest=self._busiest(),
        )

    def _other_ticks(self) -> dict[int, int]:
        own = {*self._pids, os.getpid()}
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return {pid: _ticks(pid) for pid in pids if pid not in own}

    def _busiest(self) -> str:
        """Name and seconds of the other process that used most processor time."""
        after = self._other_ticks()
        used = {pid: ticks - self._others.get(pid, 0) for pid, ticks in after.items()}
        pid = max(used, key=lambda p: used[p], default=0)
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            name = "one that ended"
        return f"{name} ({pid}) {used.get(pid, 0) * _TICK_S:.2f} s"

    def _counts(self) -> tuple[float, float, float, float, float]:
        cpu = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        user, nice, system, _, _, irq, softirq, steal = cpu[:8]
        busy = user + nice + system + irq + softirq
        own = sum(_ticks(pid) for pid in [*self._pids, os.getpid()])
        switches = sum(involuntary_switches(pid) for pid in self._pids)
        return steal, busy, own, switches, time.monotonic()


def involuntary_switches(pid: int) -> int:
    """How often a thread of the process lost its core before it had finished, since its start."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            for line in task.read_text().splitlines():
                if line.startswith("nonvoluntary_ctxt_switches:"):
                    total += int(line.split()[1])
        except OSError:
            continue  # a thread that has just ended
    return total


def _ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # the name may contain spaces
    return int(fields[11]) + int(fields[12])
