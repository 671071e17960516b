"""An entry: a program, its arguments and its environment."""

from __future__ import annotations

import dataclasses
import enum
import re


class Role(enum.Enum):
    """The purpose of measuring an entry."""

    FLOOR = "floor"  # no communication: the cost of the computation
    PEER = "peer"
    OURS = "ours"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One program in one configuration. `name` is unique within a suite."""

    name: str
    role: Role
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    family: str = ""  # peers for the same comparison; the best of a family is quoted
    alone: bool = False  # one process, on the cores of all ranks, does the work of all of them
    ranks: int | None = None  # None: as many as the suite has
    mpi: bool = False  # on two hosts its ranks are started by mpirun

    @property
    def file_name(self) -> str:
        """The name, using only characters that every file system accepts."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-")

    def with_arguments(self, *arguments: str) -> Entry:
        """The same entry with more command line arguments."""
        return dataclasses.replace(self, command=self.command + arguments)
