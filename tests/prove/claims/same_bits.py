"""Claim: for one world size, all strategies give the same bits: parameters, losses and norms."""

from __future__ import annotations

from . import tensors, tolerance
from .configuration import Configuration
from .run import Run
from .sharded_runs import ShardedRuns
from .table import Table

RESIDUAL = ("residual", "residual_double")
TASKS = (*RESIDUAL, "hinge")


def check(table: Table, runs: ShardedRuns) -> None:
    table.head("One world size: parameters, losses and gradient norms of three trainings")
    for ranks in runs.worlds:
        ddp = runs.ddp(ranks)
        if ranks > 1:
            agree = ddp.code == 0 and all(ddp.all_agree(task) for task in TASKS)
            table.row(f"{ranks} ranks: ddp, each rank = the first", "same bits",
                      "same bits" if agree else "others", agree)
        for configuration in runs.configurations(ranks)[1:]:
            _row(table, _ranks(ranks), configuration, runs.of(ranks, configuration), ddp)


def _row(table: Table, where: str, configuration: Configuration, run: Run, ddp: Run) -> None:
    claim = f"{where}: {configuration.label} = ddp"
    if run.code != 0 or ddp.code != 0:
        table.row(claim, "trained", (run if run.code else ddp).last_line(), False)
    elif configuration.keeps_bits:
        got = differences(run, ddp)
        table.row(claim, "same bits", got or "same bits", not got)
    else:  # partial sums have another order
        units = max(tolerance.units_apart(run, ddp, task) for task in RESIDUAL)
        table.row(claim, tolerance.LIMIT, tolerance.text(units), units <= tolerance.UNITS)


def differences(run: Run, expected: Run) -> str:
    """The trainings with another result on any rank; empty if there are none."""
    found = []
    for task in TASKS:
        if not tensors.same_bits(run.end(task), expected.end(task)):
            units = tolerance.units_apart(run, expected, task)
            found.append(f"{task}: {tolerance.text(units)}")
        elif not run.all_agree(task):
            found.append(f"{task}: other parameters on another rank")
        elif run.steps(task) != expected.steps(task):
            found.append(f"{task}: other losses or norms")
    return ", ".join(found)


def _ranks(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"
