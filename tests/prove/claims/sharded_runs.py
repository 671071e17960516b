"""All training jobs, each run once and used by several claims."""

from __future__ import annotations

from collections.abc import Callable

from .configuration import DDP, Configuration
from .run import Programs, Run

Configurations = Callable[[int], list[Configuration]]


class ShardedRuns:
    """Runs each configuration when it is first needed."""

    def __init__(self, programs: Programs, worlds: tuple[int, ...],
                 configurations: Configurations) -> None:
        self._programs = programs
        self._configurations = configurations
        self._runs: dict[tuple[int, Configuration], Run] = {}
        self.worlds = worlds

    def configurations(self, ranks: int) -> list[Configuration]:
        return self._configurations(ranks)

    def of(self, ranks: int, configuration: Configuration) -> Run:
        key = (ranks, configuration)
        if key not in self._runs:
            self._runs[key] = self._programs.sharded(ranks, configuration)
        return self._runs[key]

    def ddp(self, ranks: int) -> Run:
        return self.of(ranks, DDP)

    def all(self) -> list[tuple[int, Configuration, Run]]:
        return [(ranks, configuration, self.of(ranks, configuration)) for ranks in self.worlds
                for configuration in self.configurations(ranks)]
