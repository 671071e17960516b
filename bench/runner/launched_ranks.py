"""Ranks started by another program such as mpirun, which uses their standard streams itself.

They get their own streams: two named pipes for each, in the job's folder, which is visible on both
hosts, because these are namespaces of one machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from . import process
from .launch import Job, Rank

# $0: the folder; the rest: the program. Opening a pipe waits for the other end, which is already
# open.
_CONNECT = """\
rank=$OMPI_COMM_WORLD_RANK
echo $$ >"$0/$rank.new" && mv "$0/$rank.new" "$0/$rank.pid" || exit
[ ! -e "$0/$rank.cores" ] || set -- taskset -c "$(cat "$0/$rank.cores")" "$@"
exec "$@" <"$0/$rank.in" >"$0/$rank.out" 2>>"$0/$rank.log"
"""


class LaunchedRank:
    """A rank that ends when its launcher ends. The launcher ends all ranks if one dies."""

    def __init__(self, folder: Path, rank: int, log: Path, cores: frozenset[int] | None) -> None:
        """Creates the pipes. Call `launched_by()` before any other method except `end()`."""
        self._launcher: process.Child | None = None
        self._pid = folder / f"{rank}.pid"
        ways = [folder / f"{rank}.in", folder / f"{rank}.out"]
        for way in ways:
            os.mkfifo(way, 0o600)
        # Neither open waits for the other end, because the first opens both ends and the second has
        # O_NONBLOCK.
        self.stdin: IO[bytes] = open(os.open(ways[0], os.O_RDWR | os.O_CLOEXEC), "wb", buffering=0)
        self.stdout: IO[bytes] = open(os.open(ways[1], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb",
                                      buffering=0)
        (folder / f"{rank}.log").symlink_to(log.resolve())
        if cores:
            (folder / f"{rank}.cores").write_text(",".join(map(str, sorted(cores))))

    def launched_by(self, launcher: process.Child) -> None:
        """Sets the launcher that starts it."""
        self._launcher = launcher

    @property
    def pid(self) -> int:
        """The process id of the rank, or of the launcher until the rank has started."""
        try:
            return int(self._pid.read_text())
        except (OSError, ValueError):
            assert self._launcher is not None
            return self._launcher.pid

    def poll(self) -> int | None:
        """The launcher's exit code, or None."""
        return self._launcher.poll() if self._launcher else None

    def wait(self, timeout: float | None = None) -> int:
        """The launcher's exit code; throws subprocess.TimeoutExpired."""
        assert self._launcher is not None
        return self._launcher.wait(timeout)

    def end(self) -> None:
        """Ends the rank and its launcher at once."""
        if self._launcher is not None:
            if self._launcher.poll() is None and self._pid.exists():
                try:
                    os.kill(self.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.kill(self._launcher)
        self.stdin.close()
        self.stdout.close()


def start(
    job: Job, into: list[Rank], launcher: Sequence[str], environment: Mapping[str, str],
    cores: Sequence[frozenset[int] | None],
) -> None:
    """Appends the job's ranks, which `launcher` starts: a command that starts the command after it once per
    rank, with OMPI_COMM_WORLD_RANK in its environment. `cores` by rank."""
    ranks = []
    for number, log in enumerate(job.logs):
        ranks.append(LaunchedRank(job.folder, number, log, cores[number]))
        into.append(ranks[-1])
    command = (*launcher, "sh", "-c", _CONNECT, str(job.folder), *job.entry.command)
    child = process.start(command, environment, job.logs[0], None, stdin=subprocess.DEVNULL)
    for rank in ranks:
        rank.launched_by(child)
