"""From the death of a rank to the first step after it, model A: ours under tessera-run, PyTorch's under torchrun."""

from __future__ import annotations

import os
import random
import re
import selectors
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from . import process, registry
from .bench import Bench
from .entry import Entry
from .failure import BenchFailure
from .findings import Restarts
from .spread import Timing
from .turns import turns

_TIMEOUT_S = 90.0  # of any wait
_SAVE_EVERY = 5
_LAST_STEP = 12  # before the fault: a step is saved by then, which takes Tessera's threads a while
_MOST_DELAY_S = 0.2  # from then to the fault, drawn: about the length of a step
_JOB = "BENCH_JOB"  # a variable that only the processes of a job have

_SIZE = re.compile(rb"([0-9.]+) M parameters")
_RESUMED = re.compile(rb"goes on from")
_STEP = re.compile(rb"step +([0-9]+)/")


def run(bench: Bench) -> None:
    """Runs a job of each entry in turn, each with one fault, after one of each to warm the page cache."""
    model = "S" if bench.quick else "A"
    entries = bench.chosen(registry.restarts(bench.programs, model, bench.text))
    sizes: dict[str, bytes] = {}
    for round_, entry in turns(entries, bench.blocks if bench.quick else bench.blocks + 1):
        is_measured = bench.quick or round_ > 0
        size, start_s, restart_s = _job(bench, entry, round_)
        if len(set(sizes.values()) | {size}) > 1:
            raise BenchFailure(f"{entry.name} has {size.decode()} M parameters, others have {sizes}")
        sizes[entry.name] = size
        bench.say(f"restarts, round {round_}: {entry.name}: start {start_s:.2f} s, restart {restart_s:.2f} s"
                  + ("" if is_measured else " (to warm up)"))
        if not is_measured:
            continue
        found = bench.findings.restarts.setdefault(entry.name, Restarts())
        found.start[round_] = Timing(start_s, start_s)
        found.restart[round_] = Timing(restart_s, restart_s)
        bench.journal.write({"suite": "restarts", "entry": entry.name, "round": round_, "start_s": start_s,
                             "restart_s": restart_s})


def launch_command(programs: registry.Programs, entry: Entry, ranks: int, run_folder: Path) -> list[str]:
    """The command that trains and saves under a launcher that starts the ranks again."""
    program, *arguments = entry.with_arguments("--steps", "100000", "--save_every", str(_SAVE_EVERY),
                                               "--checkpoint", str(run_folder)).command
    common = ["--nproc-per-node", str(ranks), "--max-restarts", "1"]
    if program == programs.python:
        return [program, "-m", "torch.distributed.run", "--standalone", *common, "--monitor-interval", "0.1",
                *arguments]
    return [programs.launcher, *common, "--backoff-seconds", "0", "--", program, *arguments]


def _job(bench: Bench, entry: Entry, round_: int) -> tuple[bytes, float, float]:
    """Millions of parameters, seconds from the start to the first step, and from the fault to the next one."""
    logs = bench.logs / "restarts"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{entry.file_name}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=logs) as folder:
        mark = Path(folder).name
        environment = process.clean_environment(
            {"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": folder, _JOB: mark} | dict(entry.environment))
        command = launch_command(bench.programs, entry, bench.ranks, Path(folder) / "run")
        began = time.monotonic()
        try:
            child = process.start(command, environment, log, None, subprocess.DEVNULL)
        except OSError as error:
            raise BenchFailure(f"{entry.name} under its launcher: {error}") from error
        try:
            lines = _Lines(child)
            size = lines.wait(_SIZE)
            lines.wait(_STEP)
            start_s = lines.read_at - began
            while int(lines.wait(_STEP)) < _LAST_STEP:
                pass
            time.sleep(random.Random(round_).uniform(0.0, _MOST_DELAY_S))
            killed = time.monotonic()
            _kill_rank(mark, round_ % bench.ranks)
            lines.wait(_RESUMED)  # lines before it are of steps that were made before the fault
            lines.wait(_STEP)
            return size, start_s, lines.read_at - killed
        except _Unheard as problem:
            raise BenchFailure(f"{entry.name} under its launcher: {problem}; log: {log}{process.tail(log)}") from None
        finally:
            process.ask_to_end(child)


def _kill_rank(mark: str, rank: int) -> None:
    wanted = {f"{_JOB}={mark}".encode(), f"RANK={rank}".encode()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_it = wanted <= set((folder / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue  # it has ended, or is another user's
        if is_it:
            os.kill(int(folder.name), signal.SIGKILL)
            return
    raise _Unheard(f"there is no rank {rank}")


class _Unheard(Exception):
    """A job did not print what was expected."""


class _Lines:
    """What a job prints, and when the last line of it was read."""

    def __init__(self, child: process.Child) -> None:
        assert child.stdout is not None
        self._pipe = child.stdout.fileno()
        self._pending = b""
        self.read_at = 0.0

    def wait(self, pattern: re.Pattern[bytes]) -> bytes:
        """Waits for a line that matches `pattern`. Returns its last group, or the match if there are no groups;
        raises _Unheard."""
        deadline = time.monotonic() + _TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while True:
                while b"\n" in self._pending:
                    line, self._pending = self._pending.split(b"\n", 1)
                    if found := pattern.search(line):
                        return found[found.lastindex or 0]
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise _Unheard(f"no '{pattern.pattern.decode()}' within {_TIMEOUT_S:g} s")
                piece = os.read(self._pipe, 1 << 16)
                self.read_at = time.monotonic()
                if not piece:
                    raise _Unheard(f"it ended before '{pattern.pattern.decode()}'")
                self._pending += piece
