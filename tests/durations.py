#!/usr/bin/env python3
"""Prints where the seconds of a build and of its tests went, longest first.

    tests/durations.py [--top N] <build folder>...

Reads what ninja and ctest leave in a build folder: .ninja_log, and ctest.log, which `make test` writes.
Compiler seconds are those of the last time that each output was made, added up by CMake's target: two
commands run at once on two cores, so a build takes about half of their sum. A suite is what stands before
the first dot or digit of ctest's names (`zero.1` and `zero.2` are of `zero`).
"""

import argparse
import collections
import dataclasses
import pathlib
import re
import sys

_HEADER = "# ninja log v"
# "  5/101 Test  #12: name ....***Failed   12.34 sec"; a long name may have no dots.
_TEST = re.compile(r"^ *\d+/\d+ +Test +#\d+: +(\S+) [. ]*(\**[A-Za-z][A-Za-z ]*?) +([0-9.]+) sec")
_REPEATED = re.compile(r"^ +Test +#\d+: +(\S+) [. ]*(\**[A-Za-z][A-Za-z ]*?) +([0-9.]+) sec")


@dataclasses.dataclass(frozen=True)
class Row:
    """`seconds` spent in `parts` commands or tests."""

    name: str
    seconds: float
    parts: int


def target_of(output: str) -> str:
    """The CMake target that made `output`; for a linked program or library its name."""
    folders = re.search(r"CMakeFiles/([^/]+)\.dir/", output)
    if folders:
        return folders.group(1)
    name = output.rsplit("/", 1)[-1]
    return re.sub(r"^lib|\.(so|a)$", "", name)


def targets(ninja_log: str) -> list[Row]:
    """Seconds by target. Throws ValueError if `ninja_log` is not ninja's."""
    lines = ninja_log.splitlines()
    if not lines or not lines[0].startswith(_HEADER):
        raise ValueError(f"got no log of ninja, expected '{_HEADER}' in its first line")
    commands = {}  # by output: (start, end, hash); made again, the last time counts
    for line in lines[1:]:
        start, end, _, output, command = line.split("\t")
        commands[output] = (int(start), int(end), command)
    seen = set()  # a command of several outputs has a line for each
    seconds: dict[str, float] = collections.defaultdict(float)
    parts: dict[str, int] = collections.Counter()
    for output, command in commands.items():
        if command in seen:
            continue
        seen.add(command)
        seconds[target_of(output)] += (command[1] - command[0]) / 1000
        parts[target_of(output)] += 1
    return _sorted(seconds, parts)


def suites(ctest_log: str) -> tuple[list[Row], list[str]]:
    """Seconds by suite, and the tests that were not run. A test that ran twice counts twice."""
    seconds: dict[str, float] = collections.defaultdict(float)
    parts: dict[str, int] = collections.Counter()
    not_run = []
    for line in ctest_log.splitlines():
        found = _TEST.match(line) or _REPEATED.match(line)
        if not found:
            continue
        name, result, took = found.groups()
        if "Skipped" in result or "Not Run" in result:
            not_run.append(name)
            continue
        suite = re.split(r"[.]", name)[0]
        seconds[suite] += float(took)
        parts[suite] += 1
    return _sorted(seconds, parts), not_run


def _sorted(seconds: dict[str, float], parts: dict[str, int]) -> list[Row]:
    rows = [Row(name, took, parts[name]) for name, took in seconds.items()]
    return sorted(rows, key=lambda row: (-row.seconds, row.name))


def table(title: str, unit: str, rows: list[Row], top: int) -> str:
    """`rows` in Markdown: the first `top`, the rest together, and the sum."""
    shown = rows[:top]
    rest = rows[top:]
    if rest:
        shown = shown + [Row(f"{len(rest)} others", sum(r.seconds for r in rest), sum(r.parts for r in rest))]
    shown = shown + [Row("**all**", sum(r.seconds for r in rows), sum(r.parts for r in rows))]
    lines = [f"| {title} | seconds | {unit} |", "|---|--:|--:|"]
    lines += [f"| {row.name} | {row.seconds:.0f} | {row.parts} |" for row in shown]
    return "\n".join(lines)


def report(folder: pathlib.Path, top: int) -> str:
    """Both tables of a build folder. Throws OSError or ValueError if it has no log of ninja."""
    parts = [f"{folder}:", table("target", "commands", targets((folder / ".ninja_log").read_text()), top)]
    log = folder / "ctest.log"
    if log.exists():
        rows, not_run = suites(log.read_text(errors="replace"))
        parts.append(table("suite", "entries of ctest", rows, top))
        parts.append("not run: " + (", ".join(not_run) or "none"))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--top", type=int, default=20, help="rows of each table (default 20)")
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        print("\n\n".join(report(folder, arguments.top) for folder in arguments.folders))
    except (OSError, ValueError) as error:
        print(f"durations.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
