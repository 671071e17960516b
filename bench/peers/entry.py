"""The common part of all entries: join the ranks, read commands from stdin, answer in JSON on stdout."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import torch
import torch.distributed as dist

# Limits every wait for a peer: if one stops, the others fail instead of hanging.
PEER_TIMEOUT = datetime.timedelta(seconds=40)

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Misuse(Exception):
    """A command line, environment or command that cannot be run; its text names the remedy."""


class Parser(argparse.ArgumentParser):
    """Shows help with an example; reports refused arguments as Misuse."""

    def __init__(self, description: str, example: str) -> None:
        super().__init__(description=description, epilog=f"example:\n  {example}", allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Raises Misuse instead of ending the process."""
        raise Misuse(f"{message}; --help lists the flags")


@dataclass(frozen=True)
class Ranks:
    """This process's rank and the number of ranks."""

    rank: int
    world: int


@contextlib.contextmanager
def joined_ranks(device: str = "cpu") -> Iterator[Ranks]:
    """Joins the process group that the environment describes, for the duration of the context. The backend
    is NCCL on GPUs and Gloo otherwise.

    Blocks until all ranks have joined. Each rank computes with one thread.
    """
    missing = [name for name in _ENVIRONMENT if name not in os.environ]
    if missing:
        raise Misuse(
            f"environment: got no {', '.join(missing)}; start the ranks with the benchmark's runner"
        )
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=PEER_TIMEOUT)
    yield Ranks(dist.get_rank(), dist.get_world_size())
    # Not in a `finally`: after an error the peers may be gone, and the process ends anyway.
    dist.destroy_process_group()


def private_kib() -> int:
    """The current private heap and this process's share of shared buffers, without the libraries' text."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
        fields = dict(line.split(":", 1) for line in rollup if ":" in line.split(" ", 1)[0])
    return sum(int(fields[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))


def emit(event: str, **fields: object) -> None:
    """Writes one line of the protocol."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def commands() -> Iterator[list[str]]:
    """The words of each command, until `quit` or the end of stdin."""
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        if words == ["quit"]:
            return
        if words:
            yield words


def natural(word: str, what: str) -> int:
    """Returns the positive integer in `word`."""
    if not word.isdecimal() or int(word) == 0:
        raise Misuse(f"{what}: got '{word}', expected a positive integer")
    return int(word)


def run(main: Callable[[], None]) -> None:
    """Runs `main`; ends the process with status 64 (EX_USAGE) after misuse, 1 after a failure.

    A failing rank leaves without closing the group, because closing it without its peers may wait
    for them.
    """
    status = 0
    try:
        main()
    except Misuse as misuse:
        print(f"[{os.path.basename(sys.argv[0])}] {misuse}", file=sys.stderr)
        status = 64
    except Exception:  # the runner must see any error of torch
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if status:
        os._exit(status)
