"""Tests that rows of a trace add up to its steps, and that waiting and nesting are told apart."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from bench.runner import trace_rows, traffic
from bench.runner.failure import BenchFailure
from bench.runner.traffic import Traffic

Event = tuple[int, str, str, float, float]  # rank, track, name, begin and length in ms


class TraceRowsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "trace.json"

    def read(self, *events: Event) -> list[list[trace_rows.Rows]]:
        self.path.write_text(json.dumps({"traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0},
            *({"ph": "X", "pid": rank, "cat": track, "name": name, "ts": begin * 1e3,
               "dur": length * 1e3} for rank, track, name, begin, length in events)]}))
        return trace_rows.read(self.path)

    def assert_rows(self, rows: trace_rows.Rows, **expected: float) -> None:
        for name in trace_rows.ROWS:
            self.assertAlmostEqual(rows[name], expected.get(name, 0.0), 6, name)

    def test_nested_time_is_counted_once(self) -> None:
        (steps,) = self.read(
            (0, "compute", "forward", 0, 4), (0, "gather", "a", 1, 2), (0, "gather", "a", 1.5, 1),
            (0, "compute", "backward", 4, 6), (0, "gather", "a", 4, 1), (0, "reduce", "a", 6, 2),
            (0, "vote", "vote", 11, 1), (0, "optimizer", "update", 12, 2), (0, "gather", "a", 14, 1),
            (0, "compute", "forward", 16, 1), (0, "compute", "backward", 17, 1))
        self.assertEqual(len(steps), 2)
        self.assert_rows(steps[0], forward=2, backward=3, gather=3, reduce=2, vote=1, update=2,
                         updates=1, rest=2)
        self.assertAlmostEqual(sum(steps[0].values()), 16)
        self.assert_rows(steps[1], forward=1, backward=1)

    def test_who_comes_early_waits(self) -> None:
        early, late = self.read(
            (0, "compute", "forward", 0, 1), (1, "compute", "forward", 0, 1),
            (0, "vote", "a", 1, 4), (1, "vote", "a", 3, 2))
        self.assert_rows(early[0], forward=1, vote=2, wait=2)
        self.assert_rows(late[0], forward=1, vote=2, rest=2)

    def test_posted_reductions_never_count_as_waiting(self) -> None:
        slow, _ = self.read(
            (0, "compute", "forward", 0, 1), (1, "compute", "forward", 0, 1),
            (0, "reduce", "a", 1, 4), (1, "reduce", "a", 3, 2))
        self.assert_rows(slow[0], forward=1, reduce=4)

    def test_gathers_never_count_as_waiting(self) -> None:
        slow, _ = self.read(
            (0, "compute", "forward", 0, 5), (1, "compute", "forward", 0, 5),
            (0, "gather", "a", 1, 3), (1, "gather", "a", 1, 1))
        self.assert_rows(slow[0], forward=2, gather=3)

    def test_typical_steps_add_up_and_ignore_outliers(self) -> None:
        none = dict.fromkeys(trace_rows.ROWS, 0.0)
        steps = [none | {"forward": f, "rest": 1.0} for f in (1.0, 2.0, 3.0, 100.0)]
        found = trace_rows.typical(steps)
        self.assert_rows(found, forward=2.5, rest=1)
        self.assert_rows(trace_rows.typical(steps[:1]), forward=1, rest=1)

    def test_the_steps_of_all_ranks(self) -> None:
        by_rank = self.read(
            *((rank, "compute", "forward", 10.0 * step, 2.0 * (rank + 1))
              for rank in (0, 1, 2) for step in range(3)))
        found = trace_rows.steps_after(by_rank, 1)
        self.assertEqual(len(found), 2)
        self.assert_rows(found[0], forward=4, rest=6)

    def test_what_is_no_trace_is_refused(self) -> None:
        with self.assertRaisesRegex(BenchFailure, "not a trace: FileNotFoundError"):
            trace_rows.read(self.path)
        for text in ("", "[]", '{"traceEvents": [{"ph": "X"}]}'):
            self.path.write_text(text)
            with self.assertRaisesRegex(BenchFailure, "not a trace"):
                trace_rows.read(self.path)
        with self.assertRaisesRegex(BenchFailure, r"ranks \[1\], expected 0"):
            self.read((1, "compute", "forward", 0, 1))
        with self.assertRaisesRegex(BenchFailure, r"ranks have \[1, 2\] steps"):
            self.read((0, "compute", "forward", 0, 1), (1, "compute", "forward", 0, 1),
                      (1, "compute", "forward", 2, 1))
        with self.assertRaisesRegex(BenchFailure, r"ranks have \[0\] steps"):
            self.read((0, "vote", "vote", 0, 1))

    def test_parts_of_the_traffic_are_its_sum(self) -> None:
        for world in (2, 3, 8):
            for name in ("ddp", "zero1", "zero2", "zero3", "zero3-keep", "zero1-apart", "zero3-apart"):
                total = sum(part.total for part in traffic.parts(name, world).values())
                self.assertAlmostEqual(total - 7.0, traffic.strategy(name, world).total)
        self.assertEqual(traffic.parts("zero2", 2),
                         {"reduce": Traffic(1.0, 0.5), "update": Traffic(2.0, 1.5)})
        self.assertEqual(traffic.parts("zero1", 4)["reduce"].total, 1.25)
        self.assertEqual(traffic.parts("zero2-apart", 4)["updates"], Traffic(0.75, 0.75))
        self.assertEqual(traffic.parts("zero3-apart", 4)["gather"], Traffic(2.0, 2.0))
        self.assertEqual(traffic.parts("ddp", 4),
                         {"reduce": Traffic(1.0, 1.0), "update": Traffic(4.0, 3.0)})


if __name__ == "__main__":
    unittest.main()
