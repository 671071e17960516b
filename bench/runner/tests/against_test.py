"""Tests the comparison of two builds."""

from __future__ import annotations

import dataclasses
import tempfile
import unittest
from pathlib import Path

from bench.runner import against, collectives_suite, options, startup_suite, train_suite
from bench.runner.entry import Entry, Role
from bench.runner.tests import stage


class IntervalTest(unittest.TestCase):
    def test_of_nine_is_from_the_second_to_the_eighth(self) -> None:
        self.assertEqual(against.interval([9, 8, 7, 6, 5, 4, 3, 2, 1]), (2, 8))

    def test_of_six_is_everything_and_of_fewer_nothing(self) -> None:
        self.assertEqual(against.interval([3, 1, 2, 6, 5, 4]), (1, 6))
        self.assertIsNone(against.interval([1.0] * 5))

    def test_of_thirty_leaves_out_nine_at_each_end(self) -> None:
        self.assertEqual(against.interval(list(range(1, 31))), (10, 21))

    def test_one_lucky_round_makes_no_miss_and_no_hit(self) -> None:
        slow = [1.2] * 8 + [0.5]
        self.assertTrue(against.Comparison("x", slow).is_miss)
        self.assertFalse(against.Comparison("x", [1.2] * 7 + [0.5, 1.0]).is_miss)
        self.assertFalse(against.Comparison("x", [1.2] * 5).is_miss)
        self.assertIn("too few rounds", against.Comparison("x", [1.2] * 5).row())


class AgainstTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_ours_are_doubled_and_peers_left_out(self) -> None:
        entries = [Entry("tessera ddp", Role.OURS, ("/a/bin/macro_train", "--text", "/ab/text")),
                   Entry("pytorch ddp", Role.PEER, ("python", "/a/train.py"))]
        found = against.beside(entries, Path("/a"), Path("/b"))
        self.assertEqual([e.name for e in found], ["tessera ddp", "tessera ddp, against"])
        self.assertEqual(found[1].command, ("/b/bin/macro_train", "--text", "/ab/text"))

    def test_the_command_line_knows_which_suites_have_two_sides(self) -> None:
        asked = options.parse(["--against", "/b"], Path("/a"))
        self.assertEqual((asked.suites, asked.models, asked.blocks), (list(against.SUITES), ["A"], against.ROUNDS))
        self.assertEqual(options.parse([], Path("/a")).blocks, 5)
        with self.assertRaises(SystemExit):
            options.parse(["--against", "/b", "--suite", "memory"], Path("/a"))

    def test_the_slower_build_is_found_in_each_suite(self) -> None:
        other = stage.programs(self.folder / "other").build
        for is_slower in (False, True):
            folder = self.folder / str(is_slower)
            folder.mkdir()
            bench = stage.bench(folder, blocks=6, quick=True, against=other)
            self.addCleanup(bench.journal.close)
            if is_slower:
                for name in ("macro_train", "macro_collectives"):
                    script = bench.programs.build / "bin" / name
                    script.write_text(script.read_text().replace("exec", "FAKE_MS=2 exec"))
            train_suite.run(bench, ["A"])
            collectives_suite.run(bench)
            bench = dataclasses.replace(bench, blocks=1)
            bench.say = lambda text: None  # type: ignore[method-assign]
            startup_suite.run(bench)
            found = {c.what: c for c in against.comparisons(bench.findings)}
            for what in ("model A: tessera zero3", "2 ranks, all_reduce 64 KiB f32: tessera"):
                self.assertEqual(found[what].is_miss, is_slower, what)
            self.assertIn("start: tessera-run, zero3", found)
            self.assertIn("start: direct, tessera zero3", found)
            page = against.write(list(found.values()), "bench/run --against other", "a machine")
            self.assertEqual("**miss**" in page, is_slower)


if __name__ == "__main__":
    unittest.main()
