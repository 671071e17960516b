"""The goals for training on two hosts."""

from __future__ import annotations

from . import traffic
from .findings import Findings
from .goal import Goal, Measure
from .hosts_findings import Place, place
from .spread import Spread, ratio
from .two_hosts import GIGABIT, HOSTS, LINKS, SLOWEST

_FP32_BYTES = 4
_BLOCKS, _BLOCK_PARAMETERS = 8, 12 * 256**2 + 13 * 256  # of model A
DDP, FSDP2 = "pytorch ddp, mmap_max 0", "pytorch fsdp2, mmap_max 0"


def sent_formula(findings: Findings, strategy: str) -> float | None:
    """Bytes that each host sends per step, if there is a formula."""
    parameters = findings.hosts.parameters
    if not parameters:
        return None
    again = (_BLOCKS - 1) * _BLOCK_PARAMETERS  # the last block and the root stay from forward to backward
    factor = traffic.between_hosts(strategy, HOSTS, kept=max(0.0, 1 - again / parameters))
    return None if factor is None else factor * parameters * _FP32_BYTES


def over_bound(at: Place) -> Measure:
    """Our ddp over the larger of the floor and (first bucket + wire time)."""

    def measure(findings: Findings) -> Spread | None:
        bound = findings.hosts.bound(at, sent_formula(findings, "ddp") or 0.0)
        return ratio(findings.hosts.rounds(at, "tessera ddp"), bound)

    return measure


def gain(at: Place, peer: str, strategy: str) -> Measure:
    """A peer over ours."""
    return lambda f: f.hosts.ratio(at, peer, f"tessera {strategy}")


def over_formula(at: Place, strategy: str) -> Measure:
    """Bytes on the link, including headers, over the bytes of data in the formula."""

    def measure(findings: Findings) -> Spread | None:
        seen = findings.hosts.found.get(at, {}).get(f"tessera {strategy}")
        expected = sent_formula(findings, strategy)
        return Spread.of(sent / expected for sent in seen.sent_bytes) if seen and expected else None

    return measure


def goals() -> list[Goal]:
    """All goals, in order."""
    found = []
    for link in LINKS:
        at = place(1, link)
        found += [
            Goal(10, f"{at.name}: ddp over the larger of floor and (first bucket + wire)", over_bound(at), 1.1),
            Goal(10, f"{at.name}: Gloo's DDP over ddp", gain(at, DDP, "ddp"), 1.0, at_least=True),
        ]
    for link in (GIGABIT, SLOWEST):
        one, two = place(1, link), place(2, link)
        found += [
            Goal(10, f"{one.name}: FSDP2 over zero3", gain(one, FSDP2, "zero3"), 1.5, at_least=True),
            Goal(10, f"{two.name}: Gloo's DDP over ddp", gain(two, DDP, "ddp"), 1.5, at_least=True),
        ]
    # The headers of a link add at most 5 %.
    found += [Goal(10, f"{at.name}: bytes on the link over the formula, {strategy}", over_formula(at, strategy), 1.06)
              for at in (place(1, SLOWEST), place(2, SLOWEST)) for strategy in ("ddp", "zero2", "zero3")]
    return found
