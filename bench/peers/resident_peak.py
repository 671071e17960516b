"""The temporary memory of this process, as counted by the kernel."""

from __future__ import annotations

import ctypes
from pathlib import Path


class ResidentPeak:
    """The largest growth of resident memory since construction, which first trims the heap."""

    def __init__(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now the current resident size
        self._before_kib = _status_kib("VmRSS")

    def growth_kib(self) -> int:
        return max(0, _status_kib("VmHWM") - self._before_kib)


def _status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))
