"""Claims about training: memory as predicted, no open port, one decision on all ranks, no hang."""

from __future__ import annotations

import re

from .configuration import (
    DDP, ZERO1, ZERO1_APART, ZERO2, ZERO2_APART, ZERO3, ZERO3_APART, Configuration,
)
from .run import Programs, Run
from .sharded_runs import ShardedRuns
from .table import Table

_RANKS = 3  # two ranks besides the failing one, which must report the same


def check(table: Table, programs: Programs, runs: ShardedRuns, quick: bool) -> None:
    table.head("How it goes")
    _memory(table, runs)
    _one_copy(table, runs)
    if not quick:
        _less_and_less(table, runs)
    _ports(table, programs, runs)
    for configuration in (ZERO2,) if quick else (DDP, ZERO2, ZERO3):
        _one_decision(table, programs, configuration)
    for configuration in (ZERO3,) if quick else (DDP, ZERO3):
        _death(table, programs, configuration)
    _other_call(table, programs)


def _memory(table: Table, runs: ShardedRuns) -> None:
    """Each rank has written a line per training and class: task, class, bytes held, bytes predicted."""
    lines = [line.rsplit(" ", 2) for _, _, run in runs.all()
             for text in run.of_ranks("memory").values() for line in text.splitlines()]
    wrong = [" ".join(line) for line in lines if line[1] != line[2]]
    total = sum(int(held) for _, held, _ in lines)
    table.row("memory of every job, rank and class = the formula", "the same bytes",
              f"the same bytes ({len(lines)} numbers)" if not wrong else wrong[0],
              not wrong and total > 0)


def _one_copy(table: Table, runs: ShardedRuns) -> None:
    """In the largest world. With a copy each, every rank holds what is shared otherwise."""
    ranks = max(runs.worlds)
    shared, apart = (runs.of(ranks, configuration) for configuration in (ZERO1, ZERO1_APART))
    claim = f"zero1: {ranks} ranks of one host have one copy of the parameters together"
    if "cannot share" in shared.output:
        table.skip(claim, "this system does not show which pages a process wrote")
        return
    whole, parts = _parameter_bytes(apart), _parameter_bytes(shared)
    good = sum(parts) == max(whole)
    table.row(claim, f"{max(whole)} bytes", f"{sum(parts)} bytes ({ranks} x {parts[0]})", good)


def _less_and_less(table: Table, runs: ShardedRuns) -> None:
    """Persistent bytes on the rank that holds most, where each rank has a copy, as on separate hosts."""
    ranks = max(runs.worlds)
    totals = [max(_all_bytes(runs.of(ranks, configuration)))
              for configuration in (DDP, ZERO1_APART, ZERO2_APART, ZERO3_APART)]
    table.row(f"{ranks} ranks with a copy each: ddp, zero1, zero2, zero3 hold less and less",
              "a > b > c > d", " > ".join(map(str, totals)) + " bytes",
              sorted(set(totals), reverse=True) == totals)


def _all_bytes(run: Run) -> list[int]:
    """The bytes that each rank holds for the residual model."""
    return [sum(int(line.split()[-2]) for line in text.splitlines() if line.startswith("residual "))
            for text in run.of_ranks("memory").values()]


def _parameter_bytes(run: Run) -> list[int]:
    """The bytes that each rank holds of the residual model's parameters."""
    found = [re.search(r"^residual parameters (\d+) ", text, re.MULTILINE)
             for text in run.of_ranks("memory").values()]
    return [int(match[1]) for match in found if match is not None]


def _ports(table: Table, programs: Programs, runs: ShardedRuns) -> None:
    counts = [int(text) for _, _, run in runs.all() for text in run.of_ranks("ports").values()]
    table.row("a job opens no port", "0",
              f"{sum(counts)} (rank and launcher looked at {len(counts)} times)",
              bool(counts) and sum(counts) == 0)
    control = programs.sharded(_RANKS, DDP, "--task=residual", "--misuse=listen").of_ranks("ports")
    table.row("control: a port that rank 1 opens is noticed", "1 in rank 1",
              ", ".join(f"{count} in rank {rank}" for rank, count in sorted(control.items())),
              control == {0: "0", 1: "1", 2: "0"})


def _one_decision(table: Table, programs: Programs, configuration: Configuration) -> None:
    run = programs.sharded(_RANKS, configuration, "--task=residual", "--misuse=nan")
    texts = run.of_ranks("error")
    good = len(texts) == _RANKS and len(set(texts.values())) == 1 and "rank 1" in texts[0]
    table.row(f"{configuration.label}: a NaN on rank 1 is one error on {_RANKS} ranks",
              "one text, names rank 1", "one text, names rank 1" if good else _told(run), good)


def _death(table: Table, programs: Programs, configuration: Configuration) -> None:
    run = programs.sharded(_RANKS, configuration, "--task=residual", "--misuse=die")
    texts = run.of_ranks("error")
    good = sorted(texts) == [0, 2] and all("rank 1" in text for text in texts.values())
    table.row(f"{configuration.label}: rank 1 is killed, the others end and name it",
              "both name rank 1", "both name rank 1" if good else _told(run), good)


def _other_call(table: Table, programs: Programs) -> None:
    run = programs.sharded(_RANKS, DDP, "--task=residual", "--misuse=other_call")
    texts = run.of_ranks("error")
    good = len(texts) == _RANKS and all("what nobody else calls" in text and "loss" in text
                                        for text in texts.values())
    table.row("rank 1 calls another collective: all ranks end and name both calls",
              "all name both", "all name both" if good else _told(run), good)


def _told(run: Run) -> str:
    texts = [f"{rank}: {text.splitlines()[0][:60]}" for rank, text in
             sorted(run.of_ranks("error").items()) if text]
    return "; ".join(texts) or run.last_line()
