"""Tests whole runs with fakes: their results, and their errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.dom.minidom
from pathlib import Path
from unittest import mock

from bench.runner import (
    breakdown_suite, checkpoint_suite, collectives_suite, gallery, machine, memory_suite, optimizers_suite, process,
    report, scaling_suite, startup_suite, trace_rows, train_suite,
)
from bench.runner.bench import Bench
from bench.runner.disturbance import Limits
from bench.runner.failure import BenchFailure
from bench.runner.tests import stage

_ROOT = Path(__file__).resolve().parents[3]


class RunTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.addCleanup(lambda: self.assertEqual(process.children(), []))

    def bench(self, **settings: object) -> Bench:
        bench = stage.bench(self.folder, **settings)
        self.addCleanup(bench.journal.close)
        return bench

    def records(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "results.jsonl").read_text().splitlines()]

    def test_all_suites_and_their_report(self) -> None:
        bench = self.bench(blocks=2, quick=True)
        train_suite.run(bench, ["A", "MLP"])
        breakdown_suite.run(bench, ["A"])
        memory_suite.run(bench, ["A"])
        collectives_suite.run(bench)
        startup_suite.run(bench)
        checkpoint_suite.run(bench)
        scaling_suite.run(bench)
        optimizers_suite.run(bench)
        self.assertEqual(bench.findings.warnings, [])
        self.assertEqual({r["suite"] for r in self.records()},
                         {"train", "breakdown", "memory", "collectives", "startup", "checkpoint",
                          "scaling", "optimizers"})
        place = machine.look(_ROOT, self.folder, None)
        charts = gallery.draw(bench.findings, "a machine")
        self.assertEqual(len(charts), 5)
        for svg in charts.values():
            xml.dom.minidom.parseString(svg)
        page = report.write(bench.findings, place, "bench/run", 2, 1.0, list(charts), True, True)
        for part in ("# Results", "smoke test", "## Goals", "FSDP2 over zero3 | >= 1.4 | 2.00",
                     "### Model A", "### Model MLP", "algbw", "tessera-run, zero3",
                     "| tessera zero3 | save | 50.0 | 40 | 1.25 | 1.5 |",
                     "| lion, 3 + 2 | 0.11 | 0.11 | 0.3, libtorch | 1.00 | 3.00 | 3.00 |",
                     "| 9. sgd: LibTorch's update over ours | >= 1.5 | 3.00 | 3.00 | met |",
                     "| lion | 0.11 | 0.11 | 1.00 | 1.00 |",
                     "| 9. lion: states in 8 bits over fp32 | <= 1.3 | 1.00 | 1.00 | met |",
                     "| tessera zero2, two ranks | 11.0 | 10.0, 11.0 | 10.0, 11.0 | 0.55 | 0.55 |",
                     "| products, two processes | 20.0 | 20.0, 20.0 | 20.0, 20.0 | 1.00 | 1.00 |",
                     "| 9. muon: zero2 on two ranks over one rank, a thread each | <= 0.6 | 0.55 | 0.55 | met |",
                     "a core reads", "curves agree over 20 steps",
                     "| zero3 | 10.00 | 10.00 | 2.00 | 2.50 | 1.00 | 1.50 | 1.00 | 0.50 | 0.50 | 0.00 | "
                     "1.00 | 7.0 | 1.0 |", "| zero3 | 1.50 / 0.21 | 1.00 / 0.50 | - | - |",
                     "| libtorch threads | 1.00 | 1.00 | 1.00 |"):
            self.assertIn(part, page)

    def test_updates_that_do_something_else_fail_the_run(self) -> None:
        bench = self.bench(blocks=1, quick=True)
        for moves, message in (
            ("0", "adamw: libtorch, mmap_max 0 does something else than tessera: values have moved by 2"),
            ("tessera8bit", "adamw: tessera, 8 bits does something else than tessera: values have moved by 2"),
            ("zero2", "muon: tessera zero2, two ranks does something else than tessera, one rank: "),
        ):
            with mock.patch.dict("os.environ", {"FAKE_MOVES": moves}), self.assertRaisesRegex(BenchFailure, message):
                optimizers_suite.run(bench)

    def test_blocks_come_in_turn_and_rotate(self) -> None:
        bench = self.bench(blocks=3, wanted="^tessera (local|ddp|zero1)$")
        train_suite.run(bench, ["A"])
        order = [(r["round"], str(r["entry"]).split()[1]) for r in self.records()]
        self.assertEqual(order, [
            (0, "local"), (0, "ddp"), (0, "zero1"), (1, "ddp"), (1, "zero1"), (1, "local"),
            (2, "zero1"), (2, "local"), (2, "ddp")])

    def test_a_trace_of_other_steps_fails_the_run(self) -> None:
        bench = self.bench(blocks=1, wanted="^tessera ddp$")
        with mock.patch.object(trace_rows, "steps_after", lambda *_: []), \
                self.assertRaisesRegex(BenchFailure, "tessera ddp: the trace has 4 steps, expected 14"):
            breakdown_suite.run(bench, ["A"])

    def test_without_room_entries_start_anew_for_each_block(self) -> None:
        bench = self.bench(blocks=2, wanted="^tessera (ddp|zero1)$")
        with mock.patch.object(train_suite, "available_mib", lambda: 0.0), \
                mock.patch.object(bench, "start", wraps=bench.start) as start:
            train_suite.run(bench, ["A"])
        self.assertEqual(start.call_count, 4)
        self.assertEqual(len(bench.findings.training["A"]["tessera ddp"].rounds), 2)

    def test_a_entry_that_dies_while_it_starts_leaves_no_process(self) -> None:
        # See setUp: no child of this process may be left.
        bench = self.bench(blocks=1, quick=True, our_mode="die", wanted="tessera")
        with self.assertRaisesRegex(BenchFailure, "tessera local, rank 0: "):
            scaling_suite.run(bench)

    def test_disturbed_blocks_are_run_again_but_not_for_ever(self) -> None:
        bench = self.bench(blocks=1, wanted="^tessera ddp$")
        bench.limits = Limits(steal=-1.0)
        train_suite.run(bench, ["A"])
        self.assertEqual([r["kept"] for r in self.records()], [False, False, True])
        self.assertEqual((len(bench.findings.dropped), len(bench.findings.noisy)), (2, 1))

    def test_another_loss_curve_fails_the_run(self) -> None:
        bench = self.bench(blocks=1, our_mode="other_loss", wanted="(tessera|pytorch) ddp$")
        with self.assertRaisesRegex(BenchFailure, "A, ranks together: tessera ddp trains something "
                                                  "else than pytorch ddp: loss of step 0 is"):
            train_suite.run(bench, ["A"])

    def test_a_death_in_the_middle_ends_all_others(self) -> None:
        bench = self.bench(blocks=1, our_mode="die", wanted="(tessera|pytorch) ddp$")
        with self.assertRaisesRegex(BenchFailure, "tessera ddp, rank 0: exited with code 3"):
            train_suite.run(bench, ["A"])
        self.assertEqual(process.children(), [])

    def test_a_launched_job_without_a_first_step_fails(self) -> None:
        bench = self.bench(blocks=1, wanted="^tessera ddp$")
        with mock.patch.object(startup_suite, "_TIMEOUT_S", 3.0), \
                mock.patch.object(startup_suite, "launch_command",
                                  lambda *_: [sys.executable, "-c", "import time; time.sleep(99)"]), \
                self.assertRaisesRegex(BenchFailure, "tessera ddp under its launcher: no first step"):
            startup_suite.run(bench)

    def test_the_command_line_names_what_is_wrong(self) -> None:
        for arguments, message in (
            (["--suite", "train,nap"], "--suite: got 'train,nap', expected some of train,"),
            (["--models", "D"], "--models: got 'D', expected some of A,S,B,C,MLP"),
            (["--blocks", "0"], "--blocks: got 0, expected at least 1"),
            (["--suit", "train"], "unrecognized arguments: --suit"),
            (["positional"], "unrecognized arguments: positional"),
            (["--python", "python3", "--build", "/nonexistent"], "not built or not there: "),
        ):
            done = self.command(*arguments)
            self.assertEqual(done.returncode, 1 if "not built" in message else 64)
            self.assertIn(message, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_help_ends_well(self) -> None:
        done = self.command("--help")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, "(?s)usage: bench/run .*default: 5.*example:\n  bench/run --suite")

    def test_a_stopped_or_killed_run_leaves_no_process(self) -> None:
        made = stage.programs(self.folder / "build", "mute")
        for number in (signal.SIGTERM, signal.SIGKILL):
            runner = subprocess.Popen(
                [_ROOT / "bench" / "run", "--build", made.build, "--python", made.python,
                 "--out", self.folder / "out", "--entries", "^tessera ddp$", "--models", "A"],
                stderr=subprocess.PIPE, text=True)
            found: list[str] = []
            deadline = time.monotonic() + 60
            while len(found) < 2 and time.monotonic() < deadline:
                children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
                found = [p for p in children if "fake" in _command_line(p)]
            self.assertEqual(len(found), 2)
            runner.send_signal(number)
            runner.communicate(timeout=60)
            while any("fake" in _command_line(p) for p in found) and time.monotonic() < deadline:
                pass
            self.assertFalse([p for p in found if "fake" in _command_line(p)])

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([_ROOT / "bench" / "run", *arguments], capture_output=True, text=True,
                              timeout=60)


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    unittest.main()
