"""The private memory of a process: heap and shared buffers, without the text of libraries."""

from __future__ import annotations

from pathlib import Path


def private_kib(pid: int) -> int:
    """Pss_Anon + Pss_Shmem of the process in KiB; 0 if it has just ended.

    Each rank counts its share of pages that several ranks map, so the ranks' sum is the memory of the host.
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
        """Reads all processes once; takes milliseconds per GiB that they map."""
        self.samples += 1
        for i, pid in enumerate(self._pids):
            self.peak_kib[i] = max(self.peak_kib[i], private_kib(pid))
