"""Two hosts on this machine: network, UTS and mount namespaces, joined by a link of a chosen rate.

The namespaces have no names: they exist as long as a process in them, and these processes die with the
runner.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from . import launched_ranks, process
from .failure import BenchFailure, NotRun
from .launch import Job, Rank

HOSTS = 2
_NAMES = ("hostA", "hostB")
_ADDRESSES = ("10.77.0.1", "10.77.0.2")
_NETWORK = "10.77.0.0/24"
_INTERFACE = "link0"
_FIRST_PORT = 29500
_TOOLS = ("ip", "tc", "unshare", "nsenter", "taskset")
_TIMEOUT_S = 20.0

# $0: the host's name, $1: its /etc/hosts. Lives until its standard input ends.
_HOST = f"""\
hostname "$0" && mount --bind "$1" /etc/hosts && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && \
  ip link set lo up && echo ready && exec cat
"""


@dataclasses.dataclass(frozen=True)
class Link:
    """The link between the hosts. `mbit`: its rate in each direction, None: as fast as the kernel copies."""

    name: str
    mbit: int | None

    def wire_ms(self, sent_bytes: float) -> float:
        """The milliseconds for sending so many bytes in one direction."""
        return 0.0 if self.mbit is None else sent_bytes * 8 / (self.mbit * 1e3)


UNLIMITED = Link("no limit", None)
GIGABIT = Link("1 Gbit/s", 1000)
SLOWEST = Link("100 Mbit/s", 100)
LINKS = (UNLIMITED, GIGABIT, SLOWEST)


def mpirun() -> str | None:
    """The path of Open MPI's mpirun, or None."""
    for name in ("mpirun.openmpi", "mpirun"):
        path = shutil.which(name)
        if path is None:
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
        if "Open MPI" in done.stdout or "OpenRTE" in done.stdout:
            return path
    return None


class TwoHosts:
    """Namespaces and the link. A context manager: leaving it ends every process in them."""

    def __init__(self) -> None:
        """Raises NotRun if this user or this kernel cannot create them."""
        missing = [name for name in _TOOLS if shutil.which(name) is None]
        if missing:
            raise NotRun(f"there is no {', '.join(missing)} (Debian: iproute2, util-linux)")
        if os.geteuid() != 0:
            raise NotRun("network namespaces need root")
        found = mpirun()
        if found is None:
            raise NotRun("there is no mpirun of Open MPI (Debian: openmpi-bin)")
        self._mpirun = found
        self._ports = itertools.count(_FIRST_PORT)
        self._folder = Path(tempfile.mkdtemp(prefix="tessera-hosts-"))  # mode 0700
        self._holders: list[process.Child] = []
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TwoHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process on both hosts, and thereby the hosts. May be called again."""
        for holder in self._holders:
            for pid in _processes_in(holder.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.kill(holder)
        self._holders = []
        shutil.rmtree(self._folder, ignore_errors=True)

    def enter(self, host: int) -> tuple[str, ...]:
        """The prefix of a command line that runs the command on that host, by exec."""
        return ("nsenter", f"--target={self._holders[host].pid}", "--net", "--uts", "--mount", "--wd", "--")

    def limit(self, link: Link) -> None:
        """Sets the rate of the link in both directions."""
        for host in range(HOSTS):
            queue = ("tc", "qdisc")
            # Fails if there was no limit.
            self._run(host, *queue, "del", "dev", _INTERFACE, "root", must=False)
            if link.mbit is not None:
                self._run(host, *queue, "add", "dev", _INTERFACE, "root", "tbf", "rate", f"{link.mbit}mbit",
                          "burst", "256kb", "latency", "50ms")

    def sent_bytes(self) -> tuple[int, ...]:
        """The bytes that each host has sent over the link so far, including all headers."""
        return tuple(_sent(Path(f"/proc/{holder.pid}/net/dev").read_text()) for holder in self._holders)

    def launch(self, job: Job, into: list[Rank]) -> None:
        """Starts half of the ranks on each host, in order: ours by mpirun, others as one process each. Each
        host has half of the cores; a rank has its own core if there are enough."""
        per_host = job.world // HOSTS
        cores = split_cores(sorted(os.sched_getaffinity(0)), per_host) if job.pinned else [None] * job.world
        own = dict(job.entry.environment)
        if job.entry.mpi:
            environment = process.clean_environment(own | {
                "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
            launched_ranks.start(job, into, self._command_of_mpirun(job.world), environment, cores)
            return
        common = own | {
            "WORLD_SIZE": str(job.world), "LOCAL_WORLD_SIZE": str(per_host), "MASTER_ADDR": _ADDRESSES[0],
            "MASTER_PORT": str(next(self._ports)), "GLOO_SOCKET_IFNAME": _INTERFACE}
        for rank, log in enumerate(job.logs):
            environment = process.clean_environment(
                common | {"RANK": str(rank), "LOCAL_RANK": str(rank % per_host)})
            command = (*self.enter(rank // per_host), *job.entry.command)
            into.append(process.start(command, environment, log, cores[rank]))

    def _make(self) -> None:
        hosts = self._folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(
            f"{address} {name}\n" for address, name in zip(_ADDRESSES, _NAMES, strict=True)))
        for name in _NAMES:
            command = ("unshare", "--net", "--uts", "--mount", "--", "sh", "-c", _HOST, name, str(hosts))
            log = self._folder / f"{name}.log"
            self._holders.append(process.start(command, process.clean_environment({}), log, None))
            if not _is_ready(self._holders[-1]):
                raise NotRun(f"namespaces cannot be made here: {log.read_text(errors='replace').strip()}")
        self._run(0, "ip", "link", "add", _INTERFACE, "type", "veth", "peer", "name", _INTERFACE, "netns",
                  str(self._holders[1].pid))
        for host, address in enumerate(_ADDRESSES):
            self._run(host, "ip", "addr", "add", f"{address}/24", "dev", _INTERFACE)
            self._run(host, "ip", "link", "set", _INTERFACE, "up")
        starter = self._folder / "start"
        cases = "".join(f"  {name}) set -- {' '.join(self.enter(host))} sh -c \"$*\" ;;\n"
                        for host, name in enumerate(_NAMES))
        starter.write_text(f'#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}  *) exit 1 ;;\nesac\nexec "$@"\n')
        starter.chmod(0o700)

    def _command_of_mpirun(self, world: int) -> tuple[str, ...]:
        per_host = world // HOSTS
        settings = {
            "plm_rsh_agent": str(self._folder / "start"), "btl_tcp_if_include": _NETWORK,
            "oob_tcp_if_include": _NETWORK, "pml": "ob1", "btl": "self,vader,tcp"}
        return (*self.enter(0), self._mpirun, "-n", str(world),
                "--host", ",".join(f"{name}:{per_host}" for name in _NAMES), "--bind-to", "none",
                *itertools.chain.from_iterable(("--mca", *setting) for setting in settings.items()))

    def _run(self, host: int, *command: str, must: bool = True) -> None:
        done = subprocess.run((*self.enter(host), *command), capture_output=True, text=True,
                              timeout=_TIMEOUT_S)
        if must and done.returncode != 0:
            raise BenchFailure(f"{' '.join(command)} on {_NAMES[host]}: {done.stderr.strip()}")


def split_cores(cores: list[int], per_host: int) -> list[frozenset[int] | None]:
    """The cores of each rank: one if there are enough, otherwise those of its host; both hosts have the same
    number. None for all if there are fewer cores than hosts."""
    if len(cores) >= HOSTS * per_host:
        return [frozenset({core}) for core in cores[: HOSTS * per_host]]
    share = len(cores) // HOSTS
    if share == 0:
        return [None] * (HOSTS * per_host)
    return [frozenset(cores[host * share : (host + 1) * share])
            for host in range(HOSTS) for _ in range(per_host)]


def _is_ready(holder: process.Child) -> bool:
    assert holder.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(holder.stdout, selectors.EVENT_READ)
        return bool(selector.select(_TIMEOUT_S)) and holder.stdout.read(6) == b"ready\n"


def _sent(table: str) -> int:
    """The ninth number in the link's line of /proc/net/dev."""
    for line in table.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == _INTERFACE:
            return int(numbers.split()[8])
    raise BenchFailure(f"/proc/net/dev: has no {_INTERFACE}")


def _processes_in(holder: int) -> list[int]:
    """All processes in the holder's network except the holder, if that network is not the runner's own."""
    found: list[int] = []
    try:
        network = os.readlink(f"/proc/{holder}/ns/net")
    except OSError:
        return found
    if network == os.readlink("/proc/self/ns/net"):  # it does not have its own network yet
        return found
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != holder and os.readlink(entry / "ns/net") == network:
                found.append(int(entry.name))
        except OSError:
            continue
    return found
