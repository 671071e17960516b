"""make reproduce: README's figures and numbers from measured results.

The run is named only in README, between its marks.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import numbers, process, raw_results
from .command_line import Parser
from .failure import BenchFailure

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = "README.md"
_STEP_TIME = "docs/images/step-time.svg"
_MEMORY = "docs/images/memory.svg"
_MEMORY_RANKS = 4

_MARKED = re.compile(
    r"<!-- numbers: make reproduce, from (\S+) -->\n(.*?)<!-- numbers: end -->\n", re.S)
_STRATEGY = re.compile(r"^(\| .* \| `(ddp|zero[123])` \|) \d+ \| \d+ \|", re.M)


def main(arguments: Sequence[str]) -> int:
    """Writes the texts that differ, or with --check only reports them. Returns the exit code."""
    parser = Parser(
        "make reproduce", "Makes README's figures and numbers from the raw results of a run.",
        "make reproduce RUN=docs/benchmarks/2026-11-22-2-core-epyc/small")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if anything differs")
    parser.add_argument("--run", help="quote this run from now on (default: that README names)")
    parser.add_argument("--programs", type=Path,
                        help="folder of memory_compare, to make docs/images/memory.svg too (default: leave it)")
    read = parser.parse_args(arguments)
    try:
        made = make(_ROOT, read.run, memory_figure(read.programs) if read.programs else None)
    except BenchFailure as failure:
        print(f"make reproduce: {failure}", file=sys.stderr)
        return 1
    changed = [path for path, text in made.items() if text != _text(_ROOT / path, missing="")]
    for path in changed:
        if read.check:
            _show(path, _text(_ROOT / path, missing=""), made[path])
        else:
            (_ROOT / path).write_text(made[path], encoding="utf-8")
    for path in made:
        print(f"{path}: " + (("differs" if read.check else "written") if path in changed else "as measured"))
    if read.check and changed:
        print("make reproduce: run it to write the above", file=sys.stderr)
    return int(read.check and bool(changed))


def make(root: Path, run: str | None, memory: str | None) -> dict[str, str]:
    """Maps paths to the texts that README takes from measurements. `run`: None for the run named in README;
    `memory`: the figure of memory, None to keep it."""
    page = _text(root / _PAGE)
    marked = _MARKED.findall(page)
    if len(marked) != 1:
        raise BenchFailure(f"{_PAGE}: got {len(marked)} sections between '<!-- numbers: make reproduce, "
                           "from <run> -->' and '<!-- numbers: end -->', expected one")
    folder = os.path.relpath(run, root) if run else marked[0][0]
    found, origin = raw_results.read(root / folder), raw_results.origin(root / folder)
    section = numbers.section(found, origin, folder, _STEP_TIME)
    page = _MARKED.sub(
        lambda _: f"<!-- numbers: make reproduce, from {folder} -->\n{section}<!-- numbers: end -->\n", page)
    made = {_STEP_TIME: numbers.figure(found, origin)}
    if memory is not None:
        made[_MEMORY] = memory
    totals = _totals(memory or _text(root / _MEMORY))
    made[_PAGE], rows = _STRATEGY.subn(lambda row: _with_memory(row, totals), page)
    if not rows:
        raise BenchFailure(f"{_PAGE}: has no rows of strategies with their MiB, shared and a copy per rank")
    return made


def memory_figure(programs: Path) -> str:
    """The chart of memory_compare on four ranks: bytes, the same on every machine."""
    with tempfile.TemporaryDirectory(prefix="tessera-reproduce-") as folder:
        path = Path(folder) / "memory.svg"
        command = [programs / "tessera-run", "--standalone", "--nproc-per-node", str(_MEMORY_RANKS),
                   programs / "memory_compare", "--svg", path, "--steps", "1"]  # bytes do not change
        # With two cores per rank, reductions overlap and take more buffers.
        cores = sorted(os.sched_getaffinity(0))[:_MEMORY_RANKS]
        try:
            done = subprocess.run(command, env=process.clean_environment({}), capture_output=True, text=True,
                                  preexec_fn=lambda: os.sched_setaffinity(0, cores))
        except OSError as error:
            raise BenchFailure(f"{command[0]}: {error.strerror}") from error
        if done.returncode != 0:
            raise BenchFailure(f"memory_compare {process.describe_end(done.returncode)}:\n{done.stderr}")
        return _text(path)


def _totals(figure: str) -> dict[str, float]:
    """MiB of each configuration in the figure of memory."""
    totals: dict[str, float] = {}
    for tip, mib in re.findall(r"<title>([^<]*): ([0-9.]+)</title>", figure):
        name = tip.rpartition(", ")[0]
        totals[name] = totals.get(name, 0.0) + float(mib)
    return totals


def _with_memory(row: re.Match[str], totals: dict[str, float]) -> str:
    """The row of a strategy with its MiB, with shared parameters and with a copy per rank."""
    name = row[2]
    try:
        return f"{row[1]} {totals[name]:.0f} | {totals[name if name == 'ddp' else f'{name}:apart']:.0f} |"
    except KeyError as error:
        raise BenchFailure(f"{_MEMORY}: has no bar {error}") from error


def _text(path: Path, missing: str | None = None) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        if missing is not None:
            return missing
        raise BenchFailure(f"{path}: {error.strerror}") from error


def _show(path: str, is_: str, measured: str) -> None:
    lines = difflib.unified_diff(is_.splitlines(), measured.splitlines(), path, "as measured", lineterm="", n=0)
    for line in list(lines)[:40]:
        print(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
