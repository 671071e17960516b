"""How much memory a process takes for a while, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path


class ResidentPeak:
    """From its making to `growth_kib()`: what the resident memory of processes grew by at most."""

    def __init__(self, pids: list[int]) -> None:
        self._before_kib = {}
        for pid in pids:
            try:
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is what is resident now
                self._before_kib[pid] = _field_kib(pid, "VmRSS")
            except OSError:
                continue

    def growth_kib(self) -> int | None:
        """Of the process that grew most; None where the kernel does not say."""
        peaks = {pid: _field_kib(pid, "VmHWM") for pid in self._before_kib}
        return max((max(0, peaks[pid] - kib) for pid, kib in self._before_kib.items()), default=None)


def _field_kib(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field + ":")), 0)
