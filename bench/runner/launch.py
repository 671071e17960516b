"""Starts the ranks of an entry: on this host, one process each."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from . import process
from .entry import Entry


class Rank(Protocol):
    """One rank's process and its streams of the protocol."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None:
        """Its exit code, or None."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; throws subprocess.TimeoutExpired."""
        ...

    def end(self) -> None:
        """Ends it at once, and the processes it started. May be called again."""
        ...


@dataclasses.dataclass(frozen=True)
class Job:
    """The ranks to start."""

    entry: Entry
    world: int
    folder: Path  # only of this job, mode 0700; exists, and is removed after the end
    logs: list[Path]  # by rank, for standard error
    pins: list[frozenset[int] | None]  # cores by rank, for ranks on one host
    pinned: bool  # for ranks on several hosts: whether they get cores of their own


# A function that starts the ranks of a job. It appends them in order to the list, each as soon as it
# has been started, so that the caller can end these after an error.
Launch = Callable[[Job, list[Rank]], None]


def free_port() -> int:
    """A TCP port of the loopback interface on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_here(job: Job, into: list[Rank]) -> None:
    """Starts ranks on one host: ours meet at a socket in the job's folder, PyTorch's over the loopback
    interface."""
    common = {
        "WORLD_SIZE": str(job.world),
        "LOCAL_WORLD_SIZE": str(job.world),
        "TESSERA_STORE": f"file://{job.folder}/store",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
    } | dict(job.entry.environment)
    for rank, log in enumerate(job.logs):
        environment = process.clean_environment(common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        into.append(process.start(job.entry.command, environment, log, job.pins[rank]))
