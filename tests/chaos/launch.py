"""One start of a job: reads what it says, and does to it what was drawn."""

import dataclasses
import os
import pathlib
import re
import resource
import selectors
import signal
import subprocess
import time

from drawn import OUT_OF_MEMORY, PAUSE, STEPS, STOP, TIME_OUT_S, Fault, When, Whom
from traces import describe, ports_of, processes_of

LIMIT_S = 120.0  # of a launch; reached only if something hangs
# By then a rank that is stopped and waited for is no more: two time-outs, one of the thread that saves;
# what tessera-run waits for the others' words; the grace.
_STOPPED_S = 2 * TIME_OUT_S + 10.0
_LOOK_S = 0.1  # at least so often
_STEP = re.compile(rf"\[0\] step +(\d+)/{STEPS} ")
_HASH = re.compile(r"\[0\] parameters +([0-9a-f]{16})$")
_FIRST = re.compile(r"tessera-run: first failure: rank (\d+) ")
_AGAIN = "tessera-run: starting again"


@dataclasses.dataclass
class Strike:
    """A fault that came in time."""

    fault: Fault
    at: float
    attempt: int
    recovery_s: float | None = None  # until rank 0 has made a step that is new


@dataclasses.dataclass
class Story:
    """What has come of all launches of a run so far."""

    attempt: int = 0
    step: int = 0  # the highest
    strikes: list[Strike] = dataclasses.field(default_factory=list)
    hashes: list[str] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)  # all output, with times
    complaints: list[str] = dataclasses.field(default_factory=list)

    def complain(self, *texts: str) -> None:
        self.complaints += texts
        self.lines += (f"COMPLAINT: {text}" for text in texts)

    def step_is_made(self, step: int) -> None:
        if step <= self.step:
            return
        self.step = step
        for strike in self.strikes:
            is_over = strike.attempt < self.attempt or not strike.fault.kind.ends_attempt
            if is_over and strike.recovery_s is None:
                strike.recovery_s = time.monotonic() - strike.at


@dataclasses.dataclass
class _Held:
    """A process that is stopped."""

    descriptor: int
    rank: int
    until: float
    is_pause: bool


class Launch:
    """`faults` loses those that come. The others are left to the next launch."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: pathlib.Path, mark: str,
                 faults: list[Fault], story: Story):
        self._mark, self._faults, self._story = mark, faults, story
        self._begin = time.monotonic()
        self._due: float | None = None  # when the next fault comes, once that is known
        # Since the last fault:
        self._lines, self._has_started, self._is_last_step = 0, True, False
        self._held: list[_Held] = []
        self.strikes: list[Strike] = []
        self.restarts, self.has_failed, self.has_hash, self.hangs = 0, False, False, False
        self._process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self) -> int:
        """Its exit code; a job that hangs is killed."""
        try:
            self._hear_and_strike()
            return self._process.wait()
        finally:
            self._process.kill()  # where an exception ends us
            self._process.wait()
            self._process.stdout.close()
            self._process.stderr.close()
            for held in self._held:
                os.close(held.descriptor)

    def _hear_and_strike(self) -> None:
        rests = {self._process.stdout: b"", self._process.stderr: b""}
        with selectors.DefaultSelector() as selector:
            for pipe in rests:
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                is_over = self._process.poll() is not None
                ready = [key.fileobj for key, _ in selector.select(0.0 if is_over else self._wait_s())]
                if is_over and not ready:
                    break  # somebody else holds its pipes
                for pipe in sorted(ready, key=lambda pipe: pipe is self._process.stderr):
                    read = pipe.read(65536)
                    if not read:
                        selector.unregister(pipe)
                        continue
                    *lines, rests[pipe] = (rests[pipe] + read).split(b"\n")
                    for line in lines:
                        self._hear(line.decode(errors="replace"))
                self._let_go_on()
                self._strike_if_due()
                if time.monotonic() - self._begin > LIMIT_S and not self.hangs:
                    self._kill_all()

    def _kill_all(self) -> None:
        self.hangs = True
        processes = [self._process.pid, *processes_of(self._mark).keys() - {self._process.pid}]
        self._story.complain(f"the job hangs: after {LIMIT_S:.0f} s there are", *map(describe, processes))
        for pid in processes:
            os.kill(pid, signal.SIGKILL)

    def _note(self, text: str) -> None:
        self._story.lines.append(f"{time.monotonic() - self._begin:8.3f} {text}")

    def _wait_s(self) -> float:
        times = [held.until for held in self._held] + ([] if self._due is None else [self._due])
        return min([_LOOK_S] + [max(0.001, at - time.monotonic()) for at in times])

    def _hear(self, line: str) -> None:
        self._note(line)
        if step := _STEP.match(line):
            self._lines += 1
            self._is_last_step = int(step[1]) == STEPS
            self._story.step_is_made(int(step[1]))
        elif found := _HASH.match(line):
            self.has_hash = True
            self._story.hashes.append(found[1])
        elif line.startswith(_AGAIN):
            self.restarts += 1
            self._story.attempt += 1
            self._has_started, self._is_last_step, self.has_failed = True, False, False
        elif first := _FIRST.match(line):
            self.has_failed = True
            ranks = {strike.fault.rank for strike in self.strikes
                     if strike.attempt == self._story.attempt and strike.fault.kind.whom == Whom.RANK}
            if int(first[1]) not in ranks:
                self._story.complain(f"expected a failure of {ranks or 'nobody'}, got {line}")

    def _strike_if_due(self) -> None:
        if not self._faults or self._process.poll() is not None:
            return
        fault = self._faults[0]
        has_come = {When.START: self._has_started, When.LINE: self._lines >= fault.lines,
                    When.LAST: self._is_last_step, When.AT_ONCE: True}
        if self._due is None and has_come[fault.when]:
            self._due = time.monotonic() + fault.delay_s
        if self._due is None or time.monotonic() < self._due:
            return
        processes = processes_of(self._mark)
        self._story.complain(*ports_of(processes))
        if not self._commit(fault, processes):
            return  # the rank is not there yet, or again
        self._faults.pop(0)
        self._due = None
        self._lines, self._has_started, self._is_last_step = 0, False, False

    def _commit(self, fault: Fault, processes: dict[int, int | None]) -> bool:
        pids = [pid for pid, rank in processes.items() if rank == fault.rank]
        if fault.kind.whom == Whom.LAUNCHER:
            pids = [self._process.pid]
        if not pids:
            return False
        try:
            descriptor = os.pidfd_open(pids[0])
            if fault.kind.name == OUT_OF_MEMORY:  # what it has is too much already
                resource.prlimit(pids[0], resource.RLIMIT_AS, (1, 1))
            else:
                signal.pidfd_send_signal(descriptor, fault.kind.number)
        except ProcessLookupError:
            return False
        now = time.monotonic()
        self._note(f"--- {fault} (pid {pids[0]})")
        self.strikes.append(Strike(fault, now, self._story.attempt))
        self._story.strikes.append(self.strikes[-1])
        if fault.kind.name in (PAUSE, STOP):
            is_pause = fault.kind.name == PAUSE
            self._held.append(_Held(descriptor, fault.rank, now + (fault.pause_s if is_pause else _STOPPED_S),
                                    is_pause))
        else:
            os.close(descriptor)
        return True

    def _let_go_on(self) -> None:
        for held in [held for held in self._held if time.monotonic() >= held.until]:
            self._held.remove(held)
            try:
                signal.pidfd_send_signal(held.descriptor, signal.SIGCONT)
            except ProcessLookupError:
                continue  # it was ended
            finally:
                os.close(held.descriptor)
            self._note(f"--- rank {held.rank} is let go on")
            # One that nobody waits for, because all are at their end, is nobody's failure.
            others = {rank for rank in processes_of(self._mark).values() if rank not in (None, held.rank)}
            if not held.is_pause and (others or self.has_failed):
                self._story.complain(f"nobody has ended rank {held.rank}, which was stopped; there are {others}")
