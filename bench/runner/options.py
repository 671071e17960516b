"""The command line."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from . import against
from .command_line import Parser
from .model import MODELS

SUITES = ("train", "breakdown", "collectives", "startup", "memory", "checkpoint", "restarts", "scaling", "optimizers",
          "hooks", "hosts", "gpu")
_USUAL = SUITES[:-3]  # without those that need a GPU, root or a separate run
_BREAKDOWN_MODELS = ["A", "C"]
GPU_MODELS = ("gpt2-1k", "gpt2-16k", "deep")


@dataclasses.dataclass(frozen=True)
class Options:
    """The user's options."""

    suites: list[str]
    models: list[str]
    breakdown_models: list[str]
    gpu_models: list[str]
    blocks: int
    quick: bool
    pinned: bool
    out: Path | None
    build: Path
    against: Path | None
    wanted: str
    python: str | None
    text: Path | None


def parse(arguments: Sequence[str], root: Path) -> Options:
    """Parses the command line; exits with a message if it is wrong. `root`: of the tree."""
    parser = Parser(
        "bench/run", "Runs Tessera and its peers in turns and writes tables, JSON lines and charts.",
        "bench/run --suite train --models A --entries 'local|ddp' --blocks 3 --out /tmp/bench")
    parser.add_argument("--suite",
                        help=f"of {','.join(SUITES)} (default: {','.join(_USUAL)})")
    parser.add_argument("--models", help=f"of {','.join(MODELS)} (default: all, with --quick A,MLP), on a GPU of {','.join(GPU_MODELS)}")
    parser.add_argument("--blocks", type=int, help=f"rounds (default: 5; {against.ROUNDS} with --against)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: one small round")
    parser.add_argument("--unpinned", action="store_true", help="ranks may run on any core")
    parser.add_argument("--out", type=Path,
                        help="where to write (default: docs/benchmarks/<date>-<machine>)")
    parser.add_argument("--build", type=Path, default=root / "build" / "release",
                        help="what to run (default: %(default)s)")
    parser.add_argument("--against", type=Path, metavar="BUILD",
                        help="another build of Tessera: only its programs and ours, in turns "
                        f"(suites: {','.join(against.SUITES)}; model A)")
    parser.add_argument("--entries", default="", metavar="REGEX", help="only these names (default: all)")
    parser.add_argument("--python", help="python of the peers (default: what bench/peers/setup.sh prints)")
    parser.add_argument("--text", type=Path, help="what the models read (default: the library's sources)")
    read = parser.parse_args(arguments)
    default_models = "A" if read.against else "A,MLP" if read.quick else ",".join(MODELS)
    default_suites = against.SUITES if read.against else _USUAL
    read.suite = read.suite or ",".join(default_suites)
    suites = _listed(parser, "--suite", read.suite, against.SUITES if read.against else SUITES)
    if read.blocks is None:
        read.blocks = against.ROUNDS if read.against else 5
    named = _listed(parser, "--models", read.models or default_models, (*MODELS, *GPU_MODELS))
    models = [name for name in named if name in MODELS]
    on_gpu = [name for name in GPU_MODELS if name in named]
    if not models and set(suites) != {"gpu"}:
        parser.error(f"--models: got '{read.models}', expected some of {','.join(MODELS)} for --suite {read.suite}")
    if {"train", "hooks"} <= set(suites):
        parser.error("--suite: got train and hooks, which have entries in common; make a run of each")
    if read.blocks < 1:
        parser.error(f"--blocks: got {read.blocks}, expected at least 1")
    try:
        re.compile(read.entries)
    except re.error as error:
        parser.error(f"--entries: got {read.entries!r}: {error}")
    breakdown = models if read.models or read.quick else _BREAKDOWN_MODELS
    return Options(suites, models, breakdown, on_gpu or list(GPU_MODELS), 1 if read.quick else read.blocks, read.quick,
                   not read.unpinned, read.out, read.build.resolve(),
                   read.against and read.against.resolve(), read.entries, read.python,
                   read.text)


def _listed(
    parser: argparse.ArgumentParser, flag: str, text: str, known: tuple[str, ...]
) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        parser.error(f"{flag}: got '{text}', expected some of {','.join(known)}")
    return names
