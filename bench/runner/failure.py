"""Reasons for an early end of a run."""

from __future__ import annotations


class BenchFailure(Exception):
    """An entry broke its contract, or the results cannot be compared."""


class NotRun(BenchFailure):
    """This machine or this user cannot run a suite: nothing was measured, and nothing is wrong."""


class Stopped(BaseException):
    """The user or the system requested the end of the run."""
