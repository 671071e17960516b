"""Updates by optimizers, in tables."""

from __future__ import annotations

from collections.abc import Sequence

from . import optimizers_suite, registry
from .findings import Findings
from .markdown import table
from .spread import Rounds, medians
from .training_report import cell, minima


def text(findings: Findings) -> str:
    """The suite's findings; empty if it did not run."""
    return "\n".join(part for part in (_elementwise(findings), _eight_bits(findings), _muon(findings)) if part)


def _elementwise(findings: Findings) -> str:
    rows = []
    for algorithm, found in findings.optimizers.items():
        read, written = optimizers_suite.ARRAYS[algorithm]
        row = [f"{algorithm}, {read} + {written}"]
        for name in ("tessera", "memory"):
            row.append(medians(found[name]).text() if name in found else "-")
        best = findings.fastest_libtorch(algorithm)
        gained = findings.slowdown(algorithm, best)
        row += [f"{medians(found[best]).text(1)}, {best}" if best else "-",
                cell(findings.slowdown(algorithm, "memory")), cell(gained), minima(gained)]
        rows.append(row)
    if not rows:
        return ""
    return "One update of a flat fp32 parameter by one thread, ms. Behind the name: the arrays that an update " \
        "reads and writes; `memory` reads and writes as many in one pass, with one addition for each value " \
        "written. LibTorch: its fastest variant; Lion, which it does not have, as its operators write it.\n\n" + table(
            ["update", "Tessera [range]", "memory [range]", "LibTorch [range]", "memory / Tessera",
             "LibTorch / Tessera", "of minima"], rows)


def _eight_bits(findings: Findings) -> str:
    rows = []
    for algorithm, found in findings.optimizers.items():
        over = findings.slowdown(algorithm, registry.EIGHT_BITS)
        if over is not None:
            rows.append([algorithm, medians(found[registry.EIGHT_BITS]).text(), medians(found["tessera"]).text(),
                         cell(over), minima(over)])
    if not rows:
        return ""
    return "The same over states in 8 bits, ms:\n\n" + table(
        ["update", "8 bits [range]", "fp32 [range]", "8 bits / fp32", "of minima"], rows)


def _muon(findings: Findings) -> str:
    rows = []
    for name, found in findings.muon.items():
        over = findings.muon_ratio(name, registry.PRODUCTS if "products" in name else registry.MUON_ALONE)
        rows.append([name, medians(found.rounds).text(1), _ranks(found.by_rank), _ranks(found.transforms),
                     cell(over), minima(over)])
    if not rows:
        return ""
    return f"An update by Muon of the matrices of two blocks of a GPT, width {optimizers_suite.MUON_WIDTH}, fp32, " \
        "ms; one thread per process unless it says so. A step's time is that of the slowest rank. " \
        f"`{registry.ITERATIONS}`: only the Newton-Schulz iterations, all of them in one process. " \
        f"`{registry.PRODUCTS}`: products of two matrices, in one process and in two that know nothing of " \
        "each other, which shows what the machine gives to a second process.\n\n" + table(
            ["entry", "slowest rank [range]", "each rank", "of it whole matrices", "over one process", "of minima"], rows)


def _ranks(by_rank: Sequence[Rounds]) -> str:
    return ", ".join(f"{medians(rounds).median:.1f}" for rounds in by_rank)
