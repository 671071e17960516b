"""Collectives entry: torch.distributed on Gloo, one process per rank, steered by stdin.

Command `run OP BYTES N [DTYPE]` times each of N calls of OP in microseconds. OP is all_reduce,
all_gather, reduce_scatter or barrier; BYTES is the size of the full buffer (input of
reduce_scatter, output of all_gather); DTYPE is f32 or bf16. `quit` ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from entry import Misuse, Parser, Ranks, commands, emit, joined_ranks, natural, run

_WARM_UP_CALLS = 3
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "barrier")

Call = Callable[[], object]


def _check(name: str, result: torch.Tensor, expected: float) -> None:
    """Compares one element, because a collective that computes nothing is fast."""
    if result[-1].item() != expected:
        raise RuntimeError(
            f"[{name}] got {result[-1].item()}, expected {expected}; its times mean nothing"
        )


def _prepare(name: str, size_bytes: int, dtype: torch.dtype, ranks: Ranks) -> Call:
    """Returns the call to time, with buffers of its own. Makes it once, which touches the buffers, and
    checks the result. Collective."""
    if name == "barrier":
        return dist.barrier
    unit_bytes = dtype.itemsize * ranks.world
    part, rest = divmod(size_bytes, unit_bytes)
    if rest or not part:
        raise Misuse(
            f"BYTES: got {size_bytes}, expected a positive multiple of {unit_bytes}"
            f" ({ranks.world} ranks, {dtype.itemsize} bytes per element)"
        )
    whole = torch.full((part * ranks.world,), 1.0, dtype=dtype)
    if name == "all_reduce":
        dist.all_reduce(whole)
        _check(name, whole, ranks.world)
        whole.zero_()  # repeated sums stay finite
        return lambda: dist.all_reduce(whole)
    if name == "all_gather":
        own = torch.full((part,), ranks.rank + 1.0, dtype=dtype)
        dist.all_gather_into_tensor(whole, own)
        _check(name, whole, ranks.world)
        return lambda: dist.all_gather_into_tensor(whole, own)
    own = torch.full((part,), 0.0, dtype=dtype)
    dist.reduce_scatter_tensor(own, whole)
    _check(name, own, ranks.world)
    return lambda: dist.reduce_scatter_tensor(own, whole)


def _run(call: Call, calls: int) -> list[float]:
    """Times of the calls in microseconds."""
    for _ in range(_WARM_UP_CALLS):
        call()
    times_ns = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        times_ns.append(time.perf_counter_ns() - start)
    return [ns / 1e3 for ns in times_ns]


def main() -> None:
    """Runs commands until `quit`."""
    Parser(__doc__.split("\n", maxsplit=1)[0],
           "echo run all_reduce 1048576 5 | RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 \\\n"
           "    MASTER_PORT=29500 python collectives.py").parse_args()
    with joined_ranks() as ranks:
        emit("ready")
        prepared: dict[tuple[str, int, str], Call] = {}
        for words in commands():
            if len(words) not in (4, 5) or words[0] != "run" or words[1] not in _OPERATIONS:
                raise Misuse(
                    f"command: got '{' '.join(words)}', expected 'quit' or 'run OP BYTES N [DTYPE]'"
                    f" with OP in {', '.join(_OPERATIONS)}"
                )
            dtype = words[4] if len(words) == 5 else "f32"
            if dtype not in _DTYPES:
                raise Misuse(f"DTYPE: got '{dtype}', expected one of {', '.join(_DTYPES)}")
            size_bytes = 0 if words[1] == "barrier" else natural(words[2], "BYTES")
            key = (words[1], size_bytes, dtype)
            if key not in prepared:
                prepared[key] = _prepare(words[1], size_bytes, _DTYPES[dtype], ranks)
            emit("run", us=_run(prepared[key], natural(words[3], "N")))


if __name__ == "__main__":
    run(main)
