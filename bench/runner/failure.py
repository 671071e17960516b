"""What ends a run early."""

from __future__ import annotations


class BenchFailure(Exception):
    """An entry broke its contract, or what is compared cannot be compared."""


class Stopped(BaseException):
    """The user or the system asked the run to end."""
