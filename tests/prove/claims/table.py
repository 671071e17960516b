"""The printed table; each line appears as soon as it is known."""

from __future__ import annotations

_WIDTHS = (74, 24)


class Table:
    """claim | expected | got. Counts claims that hold, fail or are skipped."""

    def __init__(self) -> None:
        self.held = 0
        self.failed: list[str] = []
        self.skipped = 0

    def head(self, title: str) -> None:
        print(f"\n{title}\n{_line('claim', 'expected', 'got')}\n{'-' * 118}", flush=True)

    def row(self, claim: str, expected: str, got: str, holds: bool) -> None:
        if holds:
            self.held += 1
        else:
            self.failed.append(_line(claim, expected, got))
        print(_line(claim, expected, got) + ("" if holds else "   <-- FAILS"), flush=True)

    def skip(self, claim: str, why: str) -> None:
        self.skipped += 1
        print(_line(claim, "", f"skipped: {why}"), flush=True)

    def end(self) -> int:
        """Prints the last line and returns the exit code."""
        skipped = f" ({self.skipped} skipped, not counted)" if self.skipped else ""
        print()
        if not self.failed:
            print(f"all {self.held} claims hold{skipped}")
            return 0
        print(f"{len(self.failed)} of {self.held + len(self.failed)} claims fail{skipped}:")
        for line in self.failed:
            print("  " + line)
        return 1


def _line(claim: str, expected: str, got: str) -> str:
    return f"{claim:<{_WIDTHS[0]}} | {expected:<{_WIDTHS[1]}} | {got}"
