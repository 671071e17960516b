"""What befalls a run, all of it drawn from a seed."""

import dataclasses
import enum
import random
import signal

STEPS = 30
TIME_OUT_S = 5  # of ranks that only a time-out can tell of a fault


class Whom(enum.Enum):
    RANK = 1
    LAUNCHER = 2


@dataclasses.dataclass(frozen=True)
class Kind:
    """A fault. `number` is a signal's; what has none is done in another way."""

    name: str
    number: int | None
    # Exit codes that tessera-run may see as the first failure. It does not start a job again that fails
    # alike twice after the same step, so a run's faults share none.
    codes: frozenset[int]
    whom: Whom = Whom.RANK
    by_library: bool = False  # fault_on_signal.cc does it
    needs_time_out: bool = False
    ends_attempt: bool = True  # if it comes in time
    may_end_well: bool = False  # without what the run prints at its end


def _codes(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


OUT_OF_MEMORY, PAUSE, STOP = "no more memory", "a pause", "SIGSTOP"
_RT = signal.SIGRTMIN
KINDS = (
    Kind("SIGKILL", signal.SIGKILL, _codes(137)),
    Kind("SIGSEGV", signal.SIGSEGV, _codes(139)),
    Kind("SIGABRT", signal.SIGABRT, _codes(134)),
    Kind("SIGBUS", signal.SIGBUS, _codes(135)),
    # A rank that trains saves and ends well, and so do the others.
    Kind("SIGTERM", signal.SIGTERM, _codes(143), may_end_well=True),
    Kind(STOP, signal.SIGSTOP, _codes(1), needs_time_out=True),
    Kind(PAUSE, signal.SIGSTOP, _codes(), ends_attempt=False),
    Kind(OUT_OF_MEMORY, None, _codes(1, 134, 135, 139)),
    Kind("an exception", _RT + 1, _codes(1), by_library=True),
    Kind("exit(3)", _RT + 2, _codes(3), by_library=True),
    Kind("_exit(3)", _RT + 3, _codes(3), by_library=True),
    Kind("_exit(0)", _RT + 4, _codes(1), by_library=True, needs_time_out=True, may_end_well=True),
    Kind("SIGKILL", signal.SIGKILL, _codes(), Whom.LAUNCHER),
    Kind("SIGKILL", signal.SIGKILL, _codes(), Whom.LAUNCHER),  # more often than the next
    Kind("SIGTERM", signal.SIGTERM, _codes(), Whom.LAUNCHER, may_end_well=True),
)


class When(enum.Enum):
    START = "after a start"
    LINE = "after line"
    LAST = "after the last step"
    AT_ONCE = "after that"


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: Kind
    rank: int
    when: When
    lines: int  # of progress since the fault before: for When.LINE
    delay_s: float  # from then on
    pause_s: float

    def __str__(self) -> str:
        whom = "tessera-run" if self.kind.whom == Whom.LAUNCHER else f"rank {self.rank}"
        length = f" of {self.pause_s:.3f} s" if self.kind.name == PAUSE else ""
        line = f" {self.lines}" if self.when == When.LINE else ""
        return f"{self.kind.name}{length} for {whom} {self.delay_s:.3f} s {self.when.value}{line}"


@dataclasses.dataclass(frozen=True)
class Case:
    seed: int
    strategies: tuple[str, ...]  # of the first start, the second and so on
    save_every: int
    faults: tuple[Fault, ...]

    @property
    def needs_time_out(self) -> bool:
        return any(fault.kind.needs_time_out for fault in self.faults)

    def __str__(self) -> str:
        return (f"seed {self.seed}: {', then '.join(self.strategies)}; saved every {self.save_every} steps; "
                + "; ".join(map(str, self.faults)))


_MOST_S = {When.START: 1.5, When.LINE: 0.06, When.LAST: 0.2, When.AT_ONCE: 0.05}


def _draw_fault(dice: random.Random, kinds: list[Kind], ranks: int, is_first: bool) -> Fault:
    when = dice.choices(tuple(When), (2, 6, 1, 0 if is_first else 3))[0]
    return Fault(dice.choice(kinds), dice.randrange(ranks), when, dice.randint(1, STEPS // 2),
                 dice.uniform(0.0, _MOST_S[when]), dice.uniform(0.0, 0.5))


def draw(seed: int, ranks: int, strategies: list[str], has_library: bool) -> Case:
    dice = random.Random(seed)
    faults: list[Fault] = []
    for _ in range(dice.choices((1, 2, 3), (2, 2, 1))[0]):
        taken = frozenset().union(*(fault.kind.codes for fault in faults))
        waits = any(fault.kind.needs_time_out for fault in faults)  # once is enough
        kinds = [kind for kind in KINDS if (has_library or not kind.by_library)
                 and not kind.codes & taken and not (waits and kind.needs_time_out)]
        faults.append(_draw_fault(dice, kinds, ranks, is_first=not faults))
    starts = 1 + sum(fault.kind.whom == Whom.LAUNCHER or fault.kind.may_end_well for fault in faults)
    rows = [strategies[seed % len(strategies)]] + [dice.choice(strategies) for _ in range(1, starts)]
    return Case(seed, tuple(rows), dice.choice((1, 1, 2, 5)), tuple(faults))
