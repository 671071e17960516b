"""All ranks of one entry, controlled together."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import process
from .entry import Entry
from .failure import BenchFailure
from .launch import Job, Launch, Rank, start_here

Answer = dict[str, Any]

_LONGEST_LINE_BYTES = 64 << 20
_TAIL_LINES = 6
_LOOK_S = 1.0  # the interval for checking whether awaited ranks are alive


class Workers:
    """The processes of one entry, one per rank, or one for all ranks. A context manager: leaving it
    kills them all.

    Every wait has a deadline. An error of a rank becomes a BenchFailure that names the entry, the
    rank, the problem and the rank's log.
    """

    def __init__(
        self, entry: Entry, world: int, logs: Path, pinned: bool = True, launch: Launch = start_here
    ) -> None:
        """Starts the ranks. `pinned`: if there are enough cores, rank r runs only on core r, or a process that
        does the work of all ranks only on the cores of all; `launch` may place them otherwise."""
        self.entry = entry
        cores = sorted(os.sched_getaffinity(0))
        pins: list[frozenset[int] | None] = [frozenset({core}) for core in cores[:world]]
        if entry.alone:
            pins, world = [frozenset(cores[:world])], 1
        if not pinned or world > len(pins):
            pins = [None] * world
        self.world = world
        self._processes: list[Rank] = []
        self._pending = [b""] * world
        self._store = Path(tempfile.mkdtemp(prefix="tessera-bench-"))  # mode 0700
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = [logs / f"{entry.file_name}.rank{rank}.log" for rank in range(world)]
        for log in self._logs:
            log.unlink(missing_ok=True)
        try:
            launch(Job(entry, world, self._store, self._logs, pins, pinned), self._processes)
        except OSError as error:
            self.kill()
            raise BenchFailure(f"{entry.name}: cannot be started: {error}") from error
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pids(self) -> list[int]:
        """Process id of each rank."""
        return [rank.pid for rank in self._processes]

    def kill(self) -> None:
        """Ends all ranks at once, and the processes that they started. May be called again."""
        for rank in self._processes:
            rank.end()
        self._processes = []
        shutil.rmtree(self._store, ignore_errors=True)

    def quit(self, timeout_s: float = 15.0) -> str | None:
        """Asks all ranks to leave, then kills them. Returns the problem, or None."""
        problem = None
        try:
            self._send("quit")
            deadline = time.monotonic() + timeout_s
            for rank, child in enumerate(self._processes):
                try:
                    code = child.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise self._failure(rank, f"still runs {timeout_s:g} s after `quit`") from None
                if code != 0:
                    raise self._failure(rank, f"{process.describe_end(code)} at `quit`")
        except BenchFailure as failure:
            problem = str(failure)
        finally:
            self.kill()
        return problem

    def ask(
        self,
        command: str,
        event: str,
        timeout_s: float,
        tick: Callable[[], None] | None = None,
        period_s: float = 0.02,
    ) -> list[Answer]:
        """Sends `command` to all ranks and returns their answers; see `wait`."""
        self._send(command)
        return self.wait(event, timeout_s, tick, period_s, f"`{command}`")

    def wait(
        self,
        event: str,
        timeout_s: float,
        tick: Callable[[], None] | None = None,
        period_s: float = 0.02,
        during: str = "the start",
    ) -> list[Answer]:
        """Returns one line of kind `event` from each rank, by rank. Meanwhile calls `tick` each period."""
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for rank, child in enumerate(self._processes):
                assert child.stdout is not None
                selector.register(child.stdout, selectors.EVENT_READ, rank)
            while True:
                for rank in range(self.world):
                    if rank not in answers and (line := self._take_line(rank)) is not None:
                        answers[rank] = self._parse(rank, line, event, during)
                if len(answers) == self.world:
                    return [answers[rank] for rank in range(self.world)]
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    silent = min(rank for rank in range(self.world) if rank not in answers)
                    raise self._failure(
                        silent, f"no '{event}' within {timeout_s:g} s of {during}"
                    )
                ready = selector.select(min(left_s, period_s if tick else _LOOK_S))
                if tick:
                    tick()
                if not ready:
                    self._check_alive(during)
                for key, _ in ready:
                    self._read(key.data, selector, during)

    def _send(self, command: str) -> None:
        for rank, child in enumerate(self._processes):
            assert child.stdin is not None
            try:
                child.stdin.write(command.encode() + b"\n")
            except OSError:
                raise self._died(rank, f"`{command}`") from None

    def _read(self, rank: int, selector: selectors.BaseSelector, during: str) -> None:
        pipe = self._processes[rank].stdout
        assert pipe is not None
        piece = os.read(pipe.fileno(), 1 << 20)
        if not piece:
            raise self._died(rank, during)
        self._pending[rank] += piece
        if len(self._pending[rank]) > _LONGEST_LINE_BYTES:
            raise self._failure(rank, f"printed a line without an end during {during}")

    def _check_alive(self, during: str) -> None:
        """Raises BenchFailure if a rank has ended. Reading its output does not always show this: a rank whose
        launcher died before the rank started never closes an output."""
        for rank, child in enumerate(self._processes):
            if child.poll() is not None:
                raise self._died(rank, during)

    def _take_line(self, rank: int) -> bytes | None:
        line, newline, rest = self._pending[rank].partition(b"\n")
        if not newline:
            return None
        self._pending[rank] = rest
        return line

    def _parse(self, rank: int, line: bytes, event: str, during: str) -> Answer:
        shown = line[:120].decode(errors="replace")
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._failure(rank, f"printed {shown!r}, expected JSON, during {during}") from None
        if not isinstance(answer, dict) or answer.get("event") != event:
            raise self._failure(rank, f"printed {shown!r}, expected event '{event}', during {during}")
        return answer

    def _died(self, rank: int, during: str) -> BenchFailure:
        # The first rank to die is the cause; ranks that lose it die a moment later.
        time.sleep(0.2)
        codes = [child.poll() for child in self._processes]
        if codes[rank] is None:
            try:
                codes[rank] = self._processes[rank].wait(2.0)
            except subprocess.TimeoutExpired:
                return self._failure(rank, f"closed its output during {during}")
        by_signal = [r for r, code in enumerate(codes) if code is not None and code < 0]
        first = by_signal[0] if by_signal else rank
        code = codes[first]
        assert code is not None
        return self._failure(first, f"{process.describe_end(code)} during {during}")

    def _failure(self, rank: int, what: str) -> BenchFailure:
        log = self._logs[rank]
        try:
            lines = log.read_text(errors="replace").strip().splitlines()[-_TAIL_LINES:]
        except OSError:
            lines = []
        tail = "".join(f"\n  | {line}" for line in lines)
        return BenchFailure(f"{self.entry.name}, rank {rank}: {what}; log: {log}{tail}")


def check_numbers(workers: Workers, answers: list[Answer], key: str, count: int) -> list[list[float]]:
    """Returns `answers[rank][key]` of every rank as lists of `count` finite numbers, or raises
    BenchFailure."""
    columns = []
    for rank, answer in enumerate(answers):
        values = answer.get(key)
        good = (
            isinstance(values, list)
            and len(values) == count
            and all(isinstance(v, (int, float)) and abs(v) < float("inf") for v in values)
        )
        if not good:
            raise workers._failure(rank, f"'{key}' is not {count} finite numbers")
        columns.append([float(value) for value in values])
    return columns
