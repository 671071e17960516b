"""The goals for one GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .findings import Gpu
from .goal import Goal
from .spread import Spread, ratio


_FORMULA_BOUND = 0.02


def _times(model: str, above: str, below: str) -> Callable[..., Spread | None]:
    """Step time of `above` over that of `below`, which equals tokens/s of `below` over `above`."""

    def measure(found: Mapping[str, Mapping[str, Gpu]]) -> Spread | None:
        of = found.get(model, {})
        return ratio(of[above].rounds, of[below].rounds) if above in of and below in of else None

    return measure


def _peaks(model: str, ours: str, peer: str) -> Callable[..., Spread | None]:
    def measure(found: Mapping[str, Mapping[str, Gpu]]) -> Spread | None:
        of = found.get(model, {})
        if ours not in of or peer not in of or not of[peer].peak_bytes:
            return None
        return Spread.of([of[ours].peak_bytes / of[peer].peak_bytes])

    return measure


def _formula(model: str, ours: str) -> Callable[..., Spread | None]:
    """The relative distance of the allocator's bytes between steps from the formula."""

    def measure(found: Mapping[str, Mapping[str, Gpu]]) -> Spread | None:
        one = found.get(model, {}).get(ours)
        if one is None or one.formula_bytes <= 0:
            return None
        return Spread.of([abs(one.held_bytes - one.formula_bytes) / one.formula_bytes])

    return measure


def goals(models: list[str]) -> list[tuple[Goal, Callable[..., Spread | None]]]:
    """The goals for the models that were trained, in order."""
    nothing = lambda _: None  # noqa: E731  (these goals read other findings)
    found: list[tuple[Goal, Callable[..., Spread | None]]] = []

    def add(name: str, bound: float, measure: Callable[..., Spread | None], at_least: bool) -> None:
        found.append((Goal(8, name, nothing, bound, at_least), measure))

    for model in models:
        for ours in ("tessera ddp", "tessera zero3"):
            add(f"{model}: {ours} over unwrapped LibTorch, step time", 1.01,
                _times(model, ours, "libtorch local"), False)
            add(f"{model}: {ours} over FSDP2 eager, tokens/s", 1.00,
                _times(model, "pytorch fsdp2", ours), True)
            add(f"{model}: {ours} over FSDP2, peak memory", 1.00,
                _peaks(model, ours, "pytorch fsdp2"), False)
            add(f"{model}: {ours}, allocator off the formula", _FORMULA_BOUND,
                _formula(model, ours), False)
        if model == "gpt2-1k":
            add(f"{model}: tessera ddp, graph over FSDP2 eager, tokens/s", 1.30,
                _times(model, "pytorch fsdp2", "tessera ddp, graph"), True)
    return found


def rows(found: Mapping[str, Mapping[str, Gpu]]) -> list[list[str]]:
    """Goal, bound, measured value, result."""
    lines = []
    for one, measure in goals(list(found)):
        seen = measure(found)
        bound = f"{'>=' if one.at_least else '<='} {one.bound:g}"
        lines.append([one.name, bound, seen.text(3) if seen else "-", one.result(seen)])
    return lines
