"""The table of configurations: what may be split over how many ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Configuration:
    """A strategy, or a hybrid with its degrees, and flags that must not change the result."""

    label: str
    flags: tuple[str, ...]
    keeps_bits: bool = True  # 1 < g < o keeps partial sums, which changes the order of additions


def _named(strategy: str, extra: str = "", *flags: str) -> Configuration:
    label = f"{strategy}, {extra}" if extra else strategy
    return Configuration(label, (f"--strategy={strategy}", *flags))


DDP = _named("ddp")
ZERO1 = _named("zero1")
ZERO1_APART = _named("zero1", "a copy per rank", "--apart")
ZERO2 = _named("zero2")
ZERO2_APART = _named("zero2", "a copy per rank", "--apart")
ZERO3 = _named("zero3")
ZERO3_APART = _named("zero3", "a copy per rank", "--apart")


def _hybrids(ranks: int) -> list[Configuration]:
    """Every p | g | o | ranks that is not one of the named strategies."""
    named = {(1, 1, 1), (1, 1, ranks), (1, ranks, ranks), (ranks, ranks, ranks)}
    found = []
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    for o in divisors:
        for g in (n for n in divisors if o % n == 0):
            for p in (n for n in divisors if g % n == 0):
                if (p, g, o) not in named:
                    found += _hybrid(p, g, o)
    return found


def _hybrid(p: int, g: int, o: int) -> list[Configuration]:
    label, keeps_bits = f"hybrid {p},{g},{o}", not 1 < g < o
    flags = ("--strategy=hybrid", f"--degrees={p},{g},{o}")
    found = [Configuration(label, flags, keeps_bits)]
    if o > 1 and p in (1, o):  # otherwise there is a copy per rank anyway
        found.append(Configuration(label + ", a copy per rank", (*flags, "--apart"), keeps_bits))
    return found


def all_of(ranks: int) -> list[Configuration]:
    """All configurations that divide `ranks`, ddp first."""
    if ranks == 1:
        return [DDP, ZERO1, ZERO2, ZERO3]
    found = [DDP, ZERO1, ZERO1_APART, ZERO2, ZERO2_APART,
             _named("zero2", "update in backward", "--optimizer_in_backward"), ZERO3, ZERO3_APART,
             _named("zero3", "update in backward", "--optimizer_in_backward"),
             _named("zero3", "whole after forward", "--apart", "--reshard_after_forward=1")]
    if ranks % 2 == 0 and ranks > 2:
        found.append(_named("zero3", "second shards", "--apart", "--reshard_after_forward=2"))
    return found + _hybrids(ranks)


def few_of(ranks: int) -> list[Configuration]:
    """For a quick look."""
    del ranks
    return [DDP, ZERO1, ZERO1_APART, ZERO2, ZERO3, ZERO3_APART]
