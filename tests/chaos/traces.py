"""What is there of a job, and what a job has left: processes, files, ports, memory."""

import os
import pathlib
import re
import time

MARK = "CHAOS_JOB"  # the variable that every process of a job has
_PROC = pathlib.Path("/proc")
_LISTENS = "0A"
# Of a run's directory while no job has it (docs/checkpoint-format.md), and once a job has ended well.
_KNOWN = re.compile(r"lock|step-\d+(\.(tmp|trash)-[0-9a-f]{32})?")
_WHOLE = re.compile(r"lock|step-\d+")


def _read(path: pathlib.Path) -> str:
    """Its text; "" where the process is gone, or not ours."""
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def processes_of(mark: str) -> dict[int, int | None]:
    """The processes of the job `mark`, each with its rank if it is one. Those that have ended do not count."""
    found = {}
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        variables = _read(_PROC / entry / "environ").split("\0")
        if f"{MARK}={mark}" in variables:
            ranks = [text[5:] for text in variables if text.startswith("RANK=")]
            found[int(entry)] = int(ranks[0]) if ranks else None
    return found


def describe(pid: int) -> str:
    command = _read(_PROC / str(pid) / "cmdline").replace("\0", " ")
    state = re.search(r"^State:\s*(.*)$", _read(_PROC / str(pid) / "status"), re.M)
    return f"{pid} ({state[1] if state else '?'}, in {_read(_PROC / str(pid) / 'wchan') or '?'}) {command}"


def _sockets_of(pid: int) -> set[str]:
    found = set()
    try:
        for name in os.listdir(_PROC / str(pid) / "fd"):
            socket = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(_PROC / str(pid) / "fd" / name))
            if socket:
                found.add(socket[1])
    except OSError:
        pass  # it has ended
    return found


def _listening() -> dict[str, str]:
    """Address by inode of each TCP socket that waits for connections."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in _read(_PROC / "net" / table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS:
                found[fields[9]] = fields[1]
    return found


def ports_of(pids) -> list[str]:
    """The addresses at which processes wait for connections."""
    listening = _listening()
    return [f"process {pid} waits for connections at {listening[inode]}"
            for pid in pids for inode in _sockets_of(pid) & listening.keys()]


def _shared_memory() -> dict[str, str]:
    """Files in /dev/shm and System V's segments: each with what a process that uses it shows of it."""
    found = {}
    if os.path.isdir("/dev/shm"):
        found = {f"/dev/shm/{name}": f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    for line in _read(_PROC / "sysvipc" / "shm").splitlines()[1:]:
        found[f"shared memory segment {line.split()[1]}"] = f"/SYSV{int(line.split()[0]) & 0xffffffff:08x}"
    return found


def _is_used(shown: str) -> bool:
    """Whether a process has it mapped or open."""
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        if shown in _read(_PROC / entry / "maps"):
            return True
        try:
            for name in os.listdir(_PROC / entry / "fd"):
                if os.readlink(_PROC / entry / "fd" / name).startswith(shown):
                    return True
        except OSError:
            continue
    return False


class Traces:
    """Of the job `mark`, whose empty `folders` are its TMPDIR, its working directory and the like."""

    def __init__(self, mark: str, folders: list[pathlib.Path]):
        self._mark, self._folders = mark, folders
        self._memory, self._ports = _shared_memory().keys(), _listening().keys()

    def left(self, seconds: float = 0.0) -> list[str]:
        """What is still there after so many seconds; returns as soon as nothing is."""
        deadline = time.monotonic() + seconds
        while True:
            left = self._left_now()
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(0.005)

    def _left_now(self) -> list[str]:
        left = [f"process {describe(pid)}" for pid in processes_of(self._mark)]
        left += [f"file {path}" for folder in self._folders for path in folder.rglob("*")]
        # Other programs of this machine use memory and ports, too: theirs have a process.
        left += [name for name, shown in _shared_memory().items()
                 if name not in self._memory and not _is_used(shown)]
        fresh = {inode: address for inode, address in _listening().items() if inode not in self._ports}
        if fresh:
            held = set().union(*(_sockets_of(int(entry)) for entry in os.listdir(_PROC) if entry.isdigit()))
            left += [f"port {address}" for inode, address in fresh.items() if inode not in held]
        return left


def steps_in(run: pathlib.Path) -> list[int]:
    """The steps that a run has saved, in order."""
    names = os.listdir(run) if run.is_dir() else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))


def unknown_in(run: pathlib.Path, has_ended_well: bool) -> list[str]:
    """What should not be in a run's directory."""
    known = _WHOLE if has_ended_well else _KNOWN
    names = os.listdir(run) if run.is_dir() else []
    return [f"{run.name}/{name}" for name in sorted(names) if not known.fullmatch(name)]
