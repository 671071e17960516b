"""From the start of a job to the end of its first step, model A."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from . import process, registry
from .bench import Bench
from .entry import Entry
from .launch import free_port
from .failure import BenchFailure
from .spread import Timing
from .turns import turns

_TIMEOUT_S = 90.0
_FIRST_STEP = re.compile(rb'"event": ?"steps"')

_FEW = ("pytorch ddp", "tessera zero3")
_ALL = ("pytorch ddp", "pytorch fsdp2", "tessera ddp", "tessera zero3")


def run(bench: Bench) -> None:
    """Runs launchers and direct starts in turn, after one start of each to warm the page cache."""
    names = _FEW if bench.quick else _ALL
    entries = [c for c in registry.training(bench.programs, "A", bench.text, quick=False) if c.name in names]
    ways: dict[str, Callable[[], float]] = {}
    for entry in bench.chosen(entries):
        who, strategy = entry.name.split(maxsplit=1)
        ways[f"direct, {entry.name}"] = lambda c=entry: _direct(bench, c)
        launcher = "tessera-run" if who == "tessera" else "torchrun"
        ways[f"{launcher}, {strategy}"] = lambda c=entry: _launched(bench, c)
    for name, start in ways.items() if not bench.quick else ():
        bench.say(f"startup: {name} {start():.2f} s (to warm up)")
    for round_, name in turns(list(ways), bench.blocks):
        seconds = ways[name]()
        bench.findings.startup.setdefault(name, {})[round_] = Timing(seconds, seconds)
        bench.journal.write(
            {"suite": "startup", "entry": name, "round": round_, "seconds": seconds}
        )
        bench.say(f"startup, round {round_}: {name} {seconds:.2f} s")


def _direct(bench: Bench, entry: Entry) -> float:
    began = time.monotonic()
    with bench.start(entry, "startup") as workers:
        workers.wait("idle", bench.start_timeout_s)
        workers.wait("ready", bench.start_timeout_s)
        workers.ask("steps 1", "steps", _TIMEOUT_S)
        seconds = time.monotonic() - began
        bench.leave(workers)
    return seconds


def launch_command(programs: registry.Programs, entry: Entry, ranks: int) -> list[str]:
    """The command that runs the entry under its launcher for one step."""
    program, *arguments = entry.command
    count = ["--nproc-per-node", str(ranks)]
    if program != programs.python:
        return [str(Path(program).with_name("tessera-run")), *count, "--", program, *arguments, "--steps", "1"]
    rendezvous = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    torchrun = [program, "-m", "torch.distributed.run", *count, *rendezvous]
    return [*torchrun, *arguments, "--steps", "1"]


def _launched(bench: Bench, entry: Entry) -> float:
    """The seconds until all ranks have reported their first step through the launcher's output."""
    logs = bench.logs / "startup"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"launched-{entry.file_name}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        environment = process.clean_environment({"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": folder})
        began = time.monotonic()
        try:
            child = process.start(
                launch_command(bench.programs, entry, bench.ranks),
                environment, log, None, subprocess.DEVNULL,
            )
        except OSError as error:
            raise BenchFailure(f"{entry.name} under its launcher: {error}") from error
        try:
            seconds = _until_reported(child, bench.ranks, began)
            if seconds is not None:
                child.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            seconds = None
        finally:
            process.ask_to_end(child)
        if seconds is None or child.returncode != 0:
            raise BenchFailure(
                f"{entry.name} under its launcher: "
                + ("no first step" if seconds is None else process.describe_end(child.returncode))
                + f" within {_TIMEOUT_S:g} s; log: {log}{process.tail(log)}"
            )
    return seconds


def _until_reported(child: subprocess.Popen[bytes], ranks: int, began: float) -> float | None:
    assert child.stdout is not None
    printed = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while (left_s := began + _TIMEOUT_S - time.monotonic()) > 0:
            if not selector.select(left_s):
                break
            piece = os.read(child.stdout.fileno(), 1 << 16)
            if not piece:
                break
            printed += piece
            if len(_FIRST_STEP.findall(printed)) >= ranks:
                return time.monotonic() - began
    return None
