"""One child process that cannot outlive the runner."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Variables of the runner's shell that no entry may see.
_REMOVED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_REMOVED_PREFIXES = ("MALLOC_", "TORCHELASTIC_", "TESSERA_", "GLOO_", "LD_PRELOAD")


class Child(subprocess.Popen[bytes]):
    """A process in its own session, created by the runner's start()."""

    def end(self) -> None:
        """Ends it at once, and the processes that it started in its session. May be called again."""
        kill(self)


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The runner's environment without job and allocator settings, with one thread, plus `extra`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _REMOVED and not name.startswith(_REMOVED_PREFIXES)
    }
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | dict(extra)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    cores: frozenset[int] | None,
    stdin: int = subprocess.PIPE,
) -> Child:
    """Starts `command` in its own session, only on `cores`, with stderr in `log`.

    The kernel kills it when the runner dies for any reason.
    """

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if cores:
            os.sched_setaffinity(0, cores)

    with log.open("ab") as errors:
        return Child(
            list(command),
            env=dict(environment),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            start_new_session=True,
            preexec_fn=prepare,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and its session and reaps it. Does not block for long."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass


def ask_to_end(launcher: subprocess.Popen[bytes]) -> None:
    """Ends a launcher: asks first, so that it ends its ranks, which may have their own sessions."""
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(5.0)
        except subprocess.TimeoutExpired:
            pass
    kill(launcher)


def tail(log: Path) -> str:
    """The last lines of a log, each indented on a line of its own."""
    lines = log.read_text(errors="replace").strip().splitlines()[-6:]
    return "".join(f"\n  | {line}" for line in lines)


def describe_end(code: int) -> str:
    """"died of SIGKILL" or "exited with code 3"."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


def adopt_orphans(adopts: bool = True) -> None:
    """If `adopts`, descendants that lose their parent become children of the runner, so that it can end
    them. Otherwise they no longer do."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def children() -> list[int]:
    """Process ids of the runner's children that are alive or not yet reaped."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def kill_orphans() -> None:
    """Kills and reaps every remaining child, and the children that it leaves behind."""
    for _ in range(100):
        left = children()
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
