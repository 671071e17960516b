"""Bytes of memory traffic that each rank's collectives and optimizer cause on one host.

All in multiples of the full buffer or of the parameters' bytes, for `world` ranks.
"""

from __future__ import annotations

_ADAMW_BYTES_PER_BYTE = 7.0  # fp32: read p, g, m, v; write p, m, v
_GATHER = 3.0  # read a unit's shards, write the unit, with write-allocate


def collective(op: str, world: int) -> float:
    """Traffic of one rank in one collective over the size of the full buffer.

    all_reduce: each rank reads `world` copies of its share and writes it back into as many;
    reduce_scatter: the same reads, one write with its write-allocate;
    all_gather: each rank copies the others' shares into its own buffer, with write-allocate.
    """
    return {
        "all_reduce": 2.0,
        "reduce_scatter": 1.0 + 2.0 / world,
        "all_gather": 3.0 * (world - 1) / world,
    }[op]


def strategy(name: str, world: int) -> float:
    """Traffic of one rank in one step beyond computation, over the parameters' bytes.

    The optimizer's part is relative to the floor, which updates all parameters on each rank.
    """
    if name == "local" or world == 1:
        return 0.0
    return sum(parts(name, world).values()) - _ADAMW_BYTES_PER_BYTE


def parts(name: str, world: int) -> dict[str, float]:
    """Traffic of one rank in one step by what causes it, over the parameters' bytes."""
    if name == "ddp":
        return {"gather": 0.0, "reduce": collective("all_reduce", world),
                "update": _ADAMW_BYTES_PER_BYTE, "publish": 0.0}
    return {
        # Units are put together elsewhere, the own slice too; published ones stay in place.
        "gather": {"zero3": 2.0, "zero3-keep": 1.0}.get(name, 0.0) * _GATHER,
        # zero1 leaves the mean in the buffer that it has just read.
        "reduce": 1.0 + 1.0 / world if name == "zero1" else collective("reduce_scatter", world),
        "update": _ADAMW_BYTES_PER_BYTE / world,
        "publish": 0.0 if name.startswith("zero3") else collective("all_gather", world),
    }
