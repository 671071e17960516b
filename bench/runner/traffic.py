"""Bytes of memory traffic that each rank's collectives and optimizer cause on one host.

All in multiples of the full buffer or of the parameters' bytes, for `world` ranks.
"""

from __future__ import annotations

_ADAMW_BYTES_PER_BYTE = 7.0  # fp32: read p, g, m, v; write p, m, v


def collective(op: str, world: int) -> float:
    """Traffic of one rank in one collective, larger than the caches, over the size of the full buffer.

    all_reduce: each rank reads `world` copies of its share and writes it back into as many;
    reduce_scatter: the same reads, one write elsewhere, past the caches;
    all_gather: each rank copies the others' shares into its own buffer, past the caches.
    """
    return {
        "all_reduce": 2.0,
        "reduce_scatter": 1.0 + 1.0 / world,
        "all_gather": 2.0 * (world - 1) / world,
    }[op]


def strategy(name: str, world: int) -> float:
    """Traffic of one rank in one step beyond computation, over the parameters' bytes.

    The optimizer's part is relative to the floor, which updates all parameters on each rank.
    """
    if name == "local" or world == 1:
        return 0.0
    return sum(parts(name, world).values()) - _ADAMW_BYTES_PER_BYTE


def parts(name: str, world: int) -> dict[str, float]:
    """Traffic of one rank in one step by what causes it, over the parameters' bytes.

    The ranks of a host have one copy of the parameters: no unit is put together elsewhere, and what
    a rank has updated is where the others read it.
    """
    if name == "ddp":
        return {"reduce": collective("all_reduce", world), "update": _ADAMW_BYTES_PER_BYTE}
    return {
        # zero1 leaves the mean in the buffer that it has just read, the others write past the
        # caches: neither reads what it overwrites.
        "reduce": collective("reduce_scatter", world),
        "update": _ADAMW_BYTES_PER_BYTE / world,
    }
