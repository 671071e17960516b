"""Bytes of memory traffic that each rank's collectives and optimizer cause on one host.

Results are multiples of the full buffer or of the parameters' bytes, for `world` ranks.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes that a rank reads and writes."""

    reads: float
    writes: float

    @property
    def total(self) -> float:
        """Bytes read and written, for uses where both cost the same."""
        return self.reads + self.writes

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.reads + other.reads, self.writes + other.writes)

    def __mul__(self, factor: float) -> Traffic:
        return Traffic(self.reads * factor, self.writes * factor)


_ADAMW = Traffic(4.0, 3.0)  # fp32: reads p, g, m, v; writes p, m, v


def collective(op: str, world: int) -> Traffic:
    """Traffic of one rank in one collective larger than the caches, over the size of the full buffer.

    all_reduce: each rank reads `world` copies of its share and writes the result into all of them;
    reduce_scatter: the same reads, and one write elsewhere, past the caches;
    all_gather: each rank copies the others' shares into its own buffer, past the caches.
    """
    return {
        "all_reduce": Traffic(1.0, 1.0),
        "reduce_scatter": Traffic(1.0, 1.0 / world),
        "all_gather": Traffic((world - 1) / world, (world - 1) / world),
    }[op]


def strategy(name: str, world: int) -> Traffic:
    """Traffic of one rank in one step in addition to computation, over the parameters' bytes.

    The optimizer's part is relative to the floor, which updates all parameters on each rank.
    """
    if name == "local" or world == 1:
        return Traffic(0.0, 0.0)
    return sum(parts(name, world).values(), _ADAMW * -1.0)


def parts(name: str, world: int) -> dict[str, Traffic]:
    """Traffic of one rank in one step by cause, over the parameters' bytes.

    The ranks of a host share one copy of the parameters, so units need no gather, and the others read
    a rank's updates in place. With `apart` a rank copies the others' updates; if parameters are
    split, it copies every unit twice instead, including its own slice.
    """
    if name == "ddp":
        return {"reduce": collective("all_reduce", world), "update": _ADAMW}
    apart = {
        "zero1-apart": {"updates": collective("all_gather", world)},
        "zero2-apart": {"updates": collective("all_gather", world)},
        "zero3-apart": {"gather": Traffic(1.0, 1.0) * 2.0},
    }
    return apart.get(name, {}) | {
        # zero1 leaves the mean in the buffer that it has just read, and the others write past the
        # caches, so neither reads the memory that it overwrites.
        "reduce": collective("reduce_scatter", world),
        "update": _ADAMW * (1.0 / world),
    }


def between_hosts(name: str, hosts: int, kept: float) -> float | None:
    """Bytes that each host sends to the others in one step, over the parameters' bytes in fp32: a host
    sends the sum of its ranks once, and a unit comes to a host once. `kept`: the share of the
    parameters that are still whole when backward begins. None without a formula.
    """
    share = (hosts - 1) / hosts
    # zero3: gathers for forward and for backward, and the reduction.
    factors = {"local": 0.0, "ddp": 2.0, "ddp-bf16": 1.0, "zero1": 2.0, "zero2": 2.0, "zero3": 3.0 - kept}
    return factors[name] * share if name in factors else None
