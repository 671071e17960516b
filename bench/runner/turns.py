"""Interleaving: all in turn, starting with another one in each round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def rotated(players: Sequence[T], round_: int) -> list[T]:
    """The players in the order of this round: ABC, BCA, CAB, ..."""
    if not players:
        return []
    first = round_ % len(players)
    return [*players[first:], *players[:first]]


def turns(players: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """(round, player), `rounds` times each."""
    for round_ in range(rounds):
        for player in rotated(players, round_):
            yield round_, player
