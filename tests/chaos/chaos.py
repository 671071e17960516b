#!/usr/bin/env python3
"""Trains a small gpt under tessera-run while ranks and launchers are killed, stopped and starved at random.

    tests/chaos/chaos.py --programs build/release/bin [--library <folder>/libfault_on_signal.so]
        [--seed N] [--runs N] [--ranks N] [--strategies ddp 'zero3 --reshard_after_forward=1']

Each seed is one run: a strategy, how often it saves, and one to three faults. Where tessera-run ends it is
started again, under another strategy. Every run must end with the parameters, the optimizer's state and the
losses of the one that nothing befell. No process, file, port or memory may be left, within two seconds where
tessera-run was killed. Prints the first seed at once, how to repeat one that fails, and how long the job took
from a fault to its next new step. Without --library no rank throws or calls exit().
"""

import argparse
import collections
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from drawn import STEPS, TIME_OUT_S, Case, Whom, draw
from launch import Launch, Story
from traces import MARK, Traces, steps_in, unknown_in

GONE_S = 2.0  # the time in which all is gone after the launcher
KEPT = 2
TEXT = pathlib.Path(__file__).resolve().parents[2] / "examples"
_ROWS = ("ddp", "zero1", "zero2", "zero3", "zero3 --reshard_after_forward=1", "hybrid --degrees=1,{0},{0}")
_NOT_INHERITED = re.compile(r"(RANK|WORLD_SIZE|LOCAL_.*|MASTER_.*|PET_.*|TORCHELASTIC_.*|TESSERA_(STORE|RUN|JOB).*)")


class Failed(Exception):
    """What stands in the way of any run."""


def _lines(path: pathlib.Path) -> set[str]:
    return set(path.read_text().splitlines()) if path.exists() else set()


class Runs:
    """Runs of one model; `scratch` is an empty folder."""

    def __init__(self, options: argparse.Namespace, scratch: pathlib.Path):
        self._options, self._scratch = options, scratch
        self._straight: dict[str, Story] = {}

    def straight(self, strategy: str) -> Story:
        """The run that nothing befalls."""
        if strategy in self._straight:
            return self._straight[strategy]
        case = Case(0, (strategy,), 0, ())
        name = f"straight-{len(self._straight)}"
        story = self.run(case, name)
        if story.complaints or len(story.hashes) != 1:
            raise Failed("\n".join([f"the run without faults under {strategy}:", *story.complaints, *story.lines]))
        for other, before in self._straight.items():
            if before.hashes != story.hashes:
                raise Failed(f"{strategy} ends with parameters {story.hashes[0]}, {other} with {before.hashes[0]}")
        self._straight[strategy] = story
        if len(self._straight) > 1:
            shutil.rmtree(self._scratch / name)
        return story

    def judged(self, case: Case, between: Callable[[pathlib.Path], list[str]] | None = None) -> Story:
        """The run of `case`, compared with the one without faults. `between` the launches something may be done to
        the run's folder, and the next be given further arguments: to see that it is noticed."""
        straight = self.straight(case.strategies[0])
        folder = self._scratch / f"seed-{case.seed}"
        story = self.run(case, folder.name, between)
        self.compare(story, straight, folder)
        shutil.rmtree(folder)
        return story

    def compare(self, story: Story, straight: Story, folder: pathlib.Path) -> None:
        """Complains of all in which a run that has ended is not the one without faults."""
        if not story.hashes:
            story.complain("the run does not end with a hash")
        for found in story.hashes:
            if found != straight.hashes[0]:
                story.complain(f"the run ends with parameters {found} instead of {straight.hashes[0]}")
        run, expected = folder / "run", self._scratch / "straight-0"
        story.complain(*(f"is left: {name}" for name in unknown_in(run, has_ended_well=True)))
        steps = steps_in(run)
        if not steps or steps[-1] != STEPS or len(steps) > KEPT + 1:
            story.complain(f"expected step {STEPS} and at most {KEPT} before it, got {steps}")
        else:
            self._check(story, "diff", expected / "run" / f"step-{STEPS}", run / f"step-{STEPS}")
        # Steps that were lost with a rank are there twice.
        odd = _lines(folder / "losses") ^ _lines(expected / "losses")
        if odd:
            story.complain(f"losses differ from those without faults: {sorted(odd)[:4]}")

    def run(self, case: Case, name: str, between: Callable[[pathlib.Path], list[str]] | None = None) -> Story:
        """All launches of `case`, in a folder of its own."""
        folder = self._scratch / name
        for part in ("temporary", "working"):
            (folder / part).mkdir(parents=True)
        mark = f"{os.getpid()}-{name}"
        traces = Traces(mark, [folder / "temporary", folder / "working"])
        environment = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.fullmatch(name)}
        environment |= {MARK: mark, "TMPDIR": str(folder / "temporary"), "OMP_NUM_THREADS": "1"}
        story, faults = Story(), list(case.faults)
        further: list[str] = []
        for strategy in case.strategies:
            command = [*self._command(case, folder, strategy), *further]
            launch = Launch(command, environment, folder / "working", mark, faults, story)
            if not self._goes_on(launch, launch.run(), story, traces, folder / "run"):
                return story
            story.attempt += 1
            further = between(folder / "run") if between else []
        story.complain("too many starts")
        return story

    def _goes_on(self, launch: Launch, code: int, story: Story, traces: Traces, run: pathlib.Path) -> bool:
        """Complains of how a launch has ended; whether to start again."""
        killed = [strike for strike in launch.strikes
                  if strike.fault.kind.whom == Whom.LAUNCHER and not strike.fault.kind.may_end_well]
        patience_s = killed[0].at + GONE_S - time.monotonic() if killed else 0.0
        story.complain(*(f"is left: {trace}" for trace in traces.left(patience_s)))
        story.complain(*(f"is left: {name}" for name in unknown_in(run, has_ended_well=False)))
        if steps_in(run):
            self._check(story, "verify", run)
        if launch.hangs:
            return False
        ending = sum(strike.fault.kind.ends_attempt for strike in launch.strikes)
        if launch.restarts > ending:
            story.complain(f"{launch.restarts} restarts after {ending} faults")
        if launch.has_hash and code == 0:
            return False
        asked = any(strike.fault.kind.may_end_well for strike in launch.strikes)
        of_launcher = any(strike.fault.kind.whom == Whom.LAUNCHER for strike in launch.strikes)
        if not (of_launcher or asked and code == 0):
            story.complain(f"tessera-run ends with code {code}")
            return False
        return True

    def _command(self, case: Case, folder: pathlib.Path, strategy: str) -> list[str]:
        options = self._options
        time_out = [f"--timeout={TIME_OUT_S}"] if case.needs_time_out else []
        preload = ["env", f"LD_PRELOAD={options.library}"] if options.library else []
        return [str(options.programs / "tessera-run"), "--nproc-per-node", str(options.ranks), "--max-restarts", "3",
                "--backoff-seconds", "0", "--grace-seconds", "1", "--", *preload, str(options.programs / "gpt"),
                f"--data={TEXT}", "--data_bytes=40000", "--layers=2", "--heads=1", "--width=15", "--context=16",
                "--batch=2", f"--steps={STEPS}", "--warmup=2", "--eval_batches=1", "--sample_bytes=0",
                "--log_every=1", f"--keep={KEPT}", f"--save_every={case.save_every}",
                f"--checkpoint={folder / 'run'}", f"--losses_out={folder / 'losses'}", *time_out,
                *f"--strategy={strategy} {options.gpt}".split()]

    def _check(self, story: Story, *arguments) -> None:
        command = [str(self._options.programs / "tessera-checkpoint"), *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            story.complain(f"{' '.join(command)} ends with {done.returncode}: {done.stdout}")


class Summary:
    def __init__(self):
        self._drawn, self._late = 0, 0
        self._recoveries = collections.defaultdict(list)

    def add(self, case: Case, story: Story) -> None:
        self._drawn += len(case.faults)
        self._late += len(case.faults) - len(story.strikes)
        for strike in story.strikes:
            whom = "tessera-run" if strike.fault.kind.whom == Whom.LAUNCHER else "a rank"
            self._recoveries[f"{strike.fault.kind.name} for {whom}"].append(strike.recovery_s)

    def __str__(self) -> str:
        lines = [f"{self._drawn} faults, {self._late} of them too late; seconds from a fault to the next new step:"]
        for name, all_s in sorted(self._recoveries.items()):
            known = [seconds for seconds in all_s if seconds is not None]
            times = f"median {statistics.median(known):6.3f}, most {max(known):6.3f}" if known else "none needed"
            lines.append(f"  {name:28} {len(all_s):3} times, {len(known):3} with a step after it: {times}")
        return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="folder of tessera-run and gpt")
    parser.add_argument("--library", type=pathlib.Path, help="what fault_on_signal.cc was made into")
    parser.add_argument("--seed", type=int, help="the first one; default: drawn")
    parser.add_argument("--runs", type=int, default=10, help="how many seeds")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--strategies", nargs="+", metavar="STRATEGY",
                        help="in turn, each with its flags; default: all")
    parser.add_argument("--gpt", default="", metavar="FLAGS",
                        help="further flags of gpt, as '--optimizer=muon --ema=0.5'")
    parser.add_argument("--verbose", action="store_true", help="print what jobs say")
    options = parser.parse_args(arguments)
    options.programs = options.programs.resolve()
    options.library = options.library and options.library.resolve()
    options.strategies = options.strategies or [row.format(options.ranks) for row in _ROWS]
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    return options


def repeat(options: argparse.Namespace, seed: int) -> str:
    library = ["--library", str(options.library)] if options.library else []
    return shlex.join(["python3", "-B", sys.argv[0], "--programs", str(options.programs), *library, "--ranks",
                       str(options.ranks), "--strategies", *options.strategies, "--seed", str(seed),
                       "--runs", "1", *([f"--gpt={options.gpt}"] if options.gpt else [])])


def main() -> int:
    options = parse()
    print(f"seeds {options.seed} to {options.seed + options.runs - 1}, {options.ranks} ranks", flush=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # no job is left then
    summary, failed = Summary(), []
    with tempfile.TemporaryDirectory() as scratch:
        runs = Runs(options, pathlib.Path(scratch))
        try:
            for seed in range(options.seed, options.seed + options.runs):
                case = draw(seed, options.ranks, options.strategies, options.library is not None)
                print(case, flush=True)
                runs.straight(case.strategies[0])
                begin = time.monotonic()
                story = runs.judged(case)
                summary.add(case, story)
                print(f"  {'FAILED' if story.complaints else 'as without faults'}, {story.attempt + 1} starts, "
                      f"{time.monotonic() - begin:.1f} s", flush=True)
                if story.complaints or options.verbose:
                    print("\n".join(story.lines), flush=True)
                if story.complaints:
                    failed.append(seed)
                    print("\n".join(["It complains:", *story.complaints, "Repeat it:", repeat(options, seed)]),
                          flush=True)
        except Failed as error:
            print(f"chaos.py: {error}", file=sys.stderr)
            return 2
    print(summary)
    if failed:
        print(f"chaos.py: seeds {failed} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
