"""Mistakes that a sharding engine could make: the comparisons of the other claims must notice each of them. A
comparison that cannot fail proves nothing."""

from __future__ import annotations

from pathlib import Path

from . import tensors, tolerance
from .configuration import DDP, ZERO1_APART, ZERO2, ZERO3, ZERO3_APART, Configuration
from .run import Programs, Run
from .sharded_runs import ShardedRuns
from .table import Table

_RANKS = 2
_TASK = "residual"
_CONTROLS = (
    ("a skipped reduction", "skip_reduction", (DDP, ZERO2, ZERO3)),
    ("two ranks' gradients swapped", "swap_reduction", (ZERO2, ZERO3)),
    ("two ranks' updates swapped", "swap_updates", (ZERO1_APART,)),
    ("a stale gather", "stale_gather", (ZERO3_APART,)),
)


def check(table: Table, programs: Programs, runs: ShardedRuns, quick: bool) -> None:
    table.head("Controls: deliberate mistakes, to the same comparison")
    good = runs.ddp(_RANKS)
    for configuration in (ZERO3_APART,) if quick else (DDP, ZERO3, ZERO3_APART):
        same = _got(programs, configuration, "pass_on", good)
        table.row(f"{configuration.label}: no mistake is no difference", "same bits", same,
                  same == "same bits")
    for what, control, configurations in _CONTROLS:
        for configuration in configurations[:1] if quick else configurations:
            got = _got(programs, configuration, control, good)
            table.row(f"{configuration.label}: {what} is noticed", "different", got,
                      got.startswith("different"))
    _flipped_bit(table, good)


def _got(programs: Programs, configuration: Configuration, control: str, good: Run) -> str:
    """Comparing bits alone would be too easy: a mistake must also exceed the tolerance for rounding."""
    run = programs.sharded(_RANKS, configuration, f"--task={_TASK}", f"--control={control}")
    if run.code != 0:
        return f"failed: {run.last_line()}"
    if tensors.same_bits(run.end(_TASK), good.end(_TASK)):
        return "same bits" if run.steps(_TASK) == good.steps(_TASK) else "other losses or norms"
    units = tolerance.units_apart(run, good, _TASK)
    within = "within rounding" if units <= tolerance.UNITS else "different"
    return f"{within}: {tolerance.text(units)}"


def _flipped_bit(table: Table, good: Run) -> None:
    name = f"{_TASK}.end"
    whole = tensors.Tensors(good.folder, name)
    flipped = Path(good.folder, "flipped.bin")
    middle = len(whole.raw) // 8 * 4  # the lowest bit of a number
    raw = bytearray(whole.raw)
    raw[middle] ^= 1
    flipped.write_bytes(raw)
    flipped.with_suffix(".txt").write_text(whole.index)
    same = tensors.same_bits(tensors.Tensors(good.folder, "flipped"), whole)
    table.row("one flipped bit in the file of parameters is noticed", "different",
              "same bits" if same else "different", not same)
