"""What ends a run early."""

from __future__ import annotations


class BenchFailure(Exception):
    """An entry broke its contract, or what is compared cannot be compared."""


class NotRun(BenchFailure):
    """This machine, or this user, cannot run a suite: nothing was measured, nothing is wrong."""


class Stopped(BaseException):
    """The user or the system asked the run to end."""
