"""A build folder and a peers folder full of fakes."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

from bench.runner import process
from bench.runner.bench import Bench
from bench.runner.entry import Entry, Role
from bench.runner.disturbance import Limits
from bench.runner.journal import Journal
from bench.runner.registry import Programs

_HERE = Path(__file__).resolve().parent
FAKE = _HERE / "fake_entry.py"
CALM = Limits(steal=1e9, foreign=1e9, switches_per_s=1e9)


def entry(name: str = "fake one", role: Role = Role.OURS, **environment: str) -> Entry:
    """A fake entry with FAKE_... settings."""
    return Entry(name, role, (sys.executable, str(FAKE)), tuple(environment.items()))


def leave_no_orphans(test: unittest.TestCase) -> None:
    """Makes this process the parent of orphans until `test` ends, and kills those that are left then."""
    process.adopt_orphans()
    test.addCleanup(process.adopt_orphans, False)
    test.addCleanup(process.kill_orphans)


def programs(folder: Path, our_mode: str = "") -> Programs:
    """All programs that a run starts. `our_mode`: how the C++ trainer misbehaves."""
    binaries, peers = folder / "bin", folder / "peers"
    binaries.mkdir(parents=True)
    peers.mkdir()
    launcher = f"{sys.executable} {_HERE / 'fake_launcher.py'}"
    setting = f"FAKE_MODE={our_mode} " if our_mode else ""
    _script(binaries / "macro_train", f"{setting}exec {sys.executable} {FAKE}")
    _script(binaries / "macro_collectives", f"exec {sys.executable} {FAKE}")
    _script(binaries / "macro_optimizers", f"exec {sys.executable} {FAKE}")
    _script(binaries / "macro_muon", f"exec {sys.executable} {FAKE}")
    _script(binaries / "gpt", f"exec {sys.executable} {FAKE}")
    _script(binaries / "tessera-run", f"exec {launcher}")
    _script(folder / "python", f'[ "$1" = -m ] && exec {launcher} "$@"; FAKE_MS=2 exec {sys.executable}')
    for name in ("train.py", "collectives.py", "resume.py"):
        (peers / name).write_text(FAKE.read_text())
    return Programs(folder, peers, str(folder / "python"))


def bench(folder: Path, **settings: object) -> Bench:
    """A quiet run with the fakes that is never disturbed by noise."""
    made = programs(folder / "build", str(settings.pop("our_mode", "")))
    text = folder / "text"
    text.write_bytes(b"text")
    journal = Journal(folder / "results.jsonl")
    found = Bench(made, text, folder / "logs", journal, limits=CALM, **settings)  # type: ignore[arg-type]
    found.say = lambda text: None  # type: ignore[method-assign]
    return found


def _script(path: Path, line: str) -> None:
    path.write_text(f'#!/bin/sh\n{line} "$@"\n')
    path.chmod(0o755)


