"""Claim: ranks train like a plain LibTorch program in one process on the rows of all ranks."""

from __future__ import annotations

import math

from . import tensors, tolerance
from .run import Run
from .same_bits import RESIDUAL
from .sharded_runs import ShardedRuns
from .table import Table


def check(table: Table, plain: Run, runs: ShardedRuns) -> None:
    table.head("Against LibTorch alone, in one process, on the rows of all ranks (64 per step)")
    _learns(table, plain)
    for ranks in runs.worlds:
        for task in RESIDUAL:
            _close_to_plain(table, ranks, runs.ddp(ranks), plain, task)
    _exact_sums(table, plain, runs)


def _learns(table: Table, plain: Run) -> None:
    """A training that learns nothing proves nothing."""
    first, *_, last = plain.losses("residual")
    table.row("the plain program learns", "a loss that falls", f"{first:.3f} to {last:.3f}",
              last < 0.9 * first)


def _close_to_plain(table: Table, ranks: int, run: Run, plain: Run, task: str) -> None:
    units = tolerance.units_apart(run, plain, task) if run.code == 0 else math.inf
    table.row(f"{ranks} x ddp, {_dtype(task)} = LibTorch alone, but for rounding", tolerance.LIMIT,
              tolerance.text(units), units <= tolerance.UNITS)


def _exact_sums(table: Table, plain: Run, runs: ShardedRuns) -> None:
    """If no sum is rounded, the order of sums cannot matter."""
    closest = float((plain.folder / "hinge.decisions").read_text())
    table.row("gradients of whole numbers: no decision is within rounding", "above 1 bound away",
              f"{closest:.3g} bounds away", closest > 1)
    for ranks in runs.worlds:
        ended = [runs.of(ranks, configuration) for configuration in runs.configurations(ranks)]
        good = sum(run.code == 0 and tensors.same_bits(run.end("hinge"), plain.end("hinge"))
                   for run in ended)
        where = f"{ranks} rank{'s' if ranks > 1 else ''}"
        table.row(f"{where}, exact sums, all {len(ended)} configurations = LibTorch alone",
                  f"same bits in {len(ended)}", f"same bits in {good}", good == len(ended))


def _dtype(task: str) -> str:
    return "fp64" if task == "residual_double" else "fp32"
