"""Claim: PyTorch in Python trains the same. Reported as left out if no Python has torch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from . import tolerance
from .run import Programs, Run
from .sharded_runs import ShardedRuns
from .table import Table

_ROOT = Path(__file__).resolve().parents[3]
_PROGRAM = _ROOT / "tests" / "prove" / "pytorch_reference.py"


def check(table: Table, programs: Programs, plain: Run, runs: ShardedRuns) -> None:
    table.head("Against PyTorch in Python: the same initial weights and data, read from files")
    claim = "ranks train what PyTorch's modules and AdamW train"
    python = _python_with_torch()
    if python is None:
        table.skip(claim, "no Python with torch")
        return
    peer = programs.other([python, "-B", str(_PROGRAM), str(plain.folder)])
    if peer.code != 0:
        table.row(claim, "trained", peer.last_line(), False)
        return
    version = peer.last_line()
    for task in ("residual", "residual_double", "hinge"):
        for what, run in _compared(plain, runs):
            units = tolerance.units_apart(run, peer, task)
            table.row(f"{what}, {task} = PyTorch {version}", tolerance.LIMIT,
                      tolerance.text(units), units <= tolerance.UNITS)


def _compared(plain: Run, runs: ShardedRuns) -> list[tuple[str, Run]]:
    return [("LibTorch alone", plain), *((f"{n} x ddp", runs.ddp(n)) for n in runs.worlds)]


def _python_with_torch() -> str | None:
    """TESSERA_PYTHON if set, otherwise python3, otherwise the benchmarks' own."""
    if "TESSERA_PYTHON" in os.environ:
        candidates = [os.environ["TESSERA_PYTHON"]]
    else:
        candidates = ["python3", _python_of_benchmarks()]
    return next((python for python in candidates if _has_torch(python)), None)


def _python_of_benchmarks() -> str:
    setup = [str(_ROOT / "bench" / "peers" / "setup.sh"), "path"]
    return subprocess.run(setup, capture_output=True, text=True, check=False).stdout.strip()


def _has_torch(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", "import torch"], capture_output=True,
                              check=False).returncode == 0
    except OSError:
        return False
