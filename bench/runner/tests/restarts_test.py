"""Tests the suite of restarts with fakes."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench.runner import goal, registry, report, restarts_suite
from bench.runner.entry import Entry
from bench.runner.failure import BenchFailure
from bench.runner.tests import stage

_FAKE = str(Path(__file__).resolve().parent / "fake_job.py")


class RestartsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        stage.leave_no_orphans(self)
        self.bench = stage.bench(self.folder, blocks=2, wanted="fsdp2|zero3")
        self.addCleanup(self.bench.journal.close)

    def run_with(self, mode: str) -> None:
        """Runs the suite; Tessera's job behaves as `mode` says."""

        def command(_programs: registry.Programs, entry: Entry, *_: object) -> list[str]:
            return [sys.executable, _FAKE, mode if entry.name == "tessera zero3" else "well"]

        with mock.patch.object(restarts_suite, "launch_command", command), \
                mock.patch.object(restarts_suite, "_TIMEOUT_S", 3.0):
            restarts_suite.run(self.bench)

    def test_a_start_and_a_restart_in_every_round(self) -> None:
        self.run_with("well")
        records = [json.loads(line) for line in (self.folder / "results.jsonl").read_text().splitlines()]
        self.assertEqual([(r["round"], r["entry"]) for r in records],
                         [(1, "tessera zero3"), (1, "pytorch fsdp2"), (2, "pytorch fsdp2"), (2, "tessera zero3")])
        for record in records:
            self.assertGreater(record["start_s"], 0.1)
            self.assertGreater(record["restart_s"], 0.2)
            self.assertLess(record["restart_s"], 5.0)
        found = self.bench.findings.restarts["tessera zero3"]
        self.assertAlmostEqual(found.beyond().high,
                               max(found.restart[r].median - found.start[r].median for r in (1, 2)))
        one, = (g for g in goal.goals() if g.number == 11 and g.measure(self.bench.findings))
        self.assertEqual(one.result(one.measure(self.bench.findings)), "met")
        self.assertIn("| tessera zero3 | 2 | ", report._restarts(self.bench.findings))

    def test_a_job_that_cannot_be_compared_fails_the_run(self) -> None:
        self.bench.blocks = 0  # the first round alone, which warms up
        for mode, message in (
            ("anew", "tessera zero3 under its launcher: no 'goes on from' within 3 s"),
            ("once", "tessera zero3 under its launcher: it ended before 'goes on from'"),
            ("larger", "has [12].00 M parameters, others have"),
        ):
            with self.subTest(mode), self.assertRaisesRegex(BenchFailure, message):
                self.run_with(mode)


class CommandsTest(unittest.TestCase):
    def test_each_launcher_starts_its_program_again(self) -> None:
        programs = registry.Programs(Path("/build"), Path("/peers"), "/python")
        peer, ours, _ = (restarts_suite.launch_command(programs, entry, 2, Path("/run"))
                         for entry in registry.restarts(programs, "A", Path("/text")))
        self.assertEqual(peer[:3], ["/python", "-m", "torch.distributed.run"])
        self.assertEqual(ours[0], "/build/bin/tessera-run")
        self.assertEqual(ours[ours.index("--") + 1], "/build/bin/gpt")
        for command in (peer, ours):
            self.assertEqual(command[command.index("--max-restarts") + 1], "1")
            self.assertEqual(command[command.index("--checkpoint") + 1], "/run")


if __name__ == "__main__":
    unittest.main()
