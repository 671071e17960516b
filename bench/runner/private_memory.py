"""The memory of a process that is its own: heap and shared buffers, library text left out."""

from __future__ import annotations

from pathlib import Path


def private_kib(pid: int) -> int:
    """Pss_Anon + Pss_Shmem of the process in KiB; 0 if it has just ended.

    Pages that several ranks map count in parts, so the ranks' sum is what the host spends.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(l.split()[1]) for l in lines if l.startswith(("Pss_Anon:", "Pss_Shmem:")))


class PeakMemory:
    """The highest `private_kib` of each process over all calls of `sample`."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self.peak_kib = [0] * len(pids)
        self.samples = 0

    def sample(self) -> None:
        """Reads all processes once; milliseconds per GiB that they map."""
        self.samples += 1
        for i, pid in enumerate(self._pids):
            self.peak_kib[i] = max(self.peak_kib[i], private_kib(pid))
