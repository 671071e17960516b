"""Tests ratios, floors, turns, noise, loss curves, goals and the traffic model."""

from __future__ import annotations

import os
import unittest

from bench.runner import goal, loss_curve, scaling_model, traffic
from bench.runner.disturbance import Disturbance, Limits
from bench.runner.failure import BenchFailure
from bench.runner.findings import Call, Findings, Memory, Pace, Scale, Training
from bench.runner.spread import Spread, Timing, ratio
from bench.runner.turns import turns


def training(*medians: float) -> Training:
    return Training({i: Timing(m, m - 0.5) for i, m in enumerate(medians)})


class ArithmeticTest(unittest.TestCase):
    def test_ratio_is_taken_round_by_round(self) -> None:
        above = {0: Timing(2, 2), 1: Timing(9, 3), 2: Timing(4, 4), 7: Timing(99, 1)}
        below = {0: Timing(1, 1), 1: Timing(3, 2), 2: Timing(1, 1)}
        found = ratio(above, below)
        assert found is not None
        self.assertEqual((found.median, found.low, found.high), (3.0, 2.0, 4.0))
        self.assertEqual(found.of_minima, 2.0)  # round 7 has no partner: its 1 does not count
        self.assertIsNone(ratio({0: Timing(1, 1)}, {1: Timing(1, 1)}))

    def test_another_one_begins_each_round(self) -> None:
        self.assertEqual([p for _, p in turns("ABC", 3)], list("ABCBCACAB"))

    def test_the_floor_is_the_lowest_by_median_not_by_luck(self) -> None:
        found = Findings(training={"A": {"x": training(10, 10, 10), "y": training(12, 5, 12)}})
        self.assertEqual(found.floor("A", ("x", "y", "unknown")), "x")

    def test_gains_are_quoted_against_the_fastest_variant(self) -> None:
        found = Findings(
            training={"A": {"pytorch fsdp2": training(20, 22), "pytorch fsdp2, tuned": training(15, 15),
                            "tessera zero3": training(10, 10)}},
            families={"pytorch fsdp2": "FSDP2", "pytorch fsdp2, tuned": "FSDP2"},
        )
        seen = goal.gain("A", "FSDP2", "zero3")(found)
        assert seen is not None
        self.assertEqual(seen.median, 1.5)

    def test_goals_are_met_missed_or_not_measured(self) -> None:
        at_most = goal.Goal(1, "x", lambda f: None, 1.02)
        at_least = goal.Goal(1, "x", lambda f: None, 2.0, at_least=True)
        low, high = Spread(1.0, 1, 1), Spread(2.5, 1, 3)
        self.assertEqual([at_most.result(s) for s in (low, high, None)],
                         ["met", "**missed**", "not measured"])
        self.assertEqual([at_least.result(s) for s in (low, high)], ["**missed**", "met"])

    def test_every_goal_can_be_evaluated_on_nothing(self) -> None:
        for one in goal.goals():
            self.assertIsNone(one.measure(Findings()), one.name)

    def test_memory_counts_from_idle(self) -> None:
        found = Findings(memory={"C": {"tessera zero3": Memory(1024, 3 * 1024, 0),
                                       "pytorch fsdp2": Memory(1024, 5 * 1024, 0)}})
        seen = goal.memory_ratio("C", "tessera zero3", "pytorch fsdp2")(found)
        assert seen is not None
        self.assertEqual(seen.median, 0.5)

    def test_limits_drop_what_was_disturbed(self) -> None:
        limits = Limits(steal=0.05, foreign=0.1, switches_per_s=100, switches_factor=4)
        inf = float("inf")
        self.assertIsNone(limits.broken_by(Disturbance(0.01, 0.02, 50), 50))
        self.assertRegex(limits.broken_by(Disturbance(0.06, 0, 0), inf) or "", "steal 6.0%")
        self.assertRegex(limits.broken_by(Disturbance(0, 0.2, 0), inf) or "", "other processes")
        self.assertRegex(limits.broken_by(Disturbance(0, 0, 500), 50) or "", "500 involuntary")
        self.assertIsNone(limits.broken_by(Disturbance(0, 0, 500), 200))  # this entry always has so many
        self.assertIsNone(limits.broken_by(Disturbance(0, 0, 500), inf))  # the first: not known yet

    def test_curves_that_agree_and_one_that_does_not(self) -> None:
        base = [5.0 - 0.1 * i for i in range(30)]
        close = [value * 1.0005 for value in base]
        self.assertRegex(loss_curve.check({"a": base, "b": close}, "A"), "2 curves agree over 20")
        self.assertRegex(loss_curve.check({"a": base, "b": close[:3]}, "A"), "over 3 steps")
        apart = base[:19] + [base[19] * 1.002]
        with self.assertRaisesRegex(BenchFailure, "A: b trains something else than a: loss of step 19"):
            loss_curve.check({"a": base, "b": apart}, "A")
        with self.assertRaises(BenchFailure):
            loss_curve.check({"a": base, "b": [float("nan")]}, "A")

    def test_the_traffic_model_explains_what_it_was_made_from(self) -> None:
        size, cores = 16 << 20, len(os.sched_getaffinity(0))
        # In the second round memory is half as fast: measurement and model change together.
        paces = {0: Pace(1e-10, 0.5e-10), 1: Pace(2e-10, 1e-10)}
        found = Findings(world_paces={2: paces})
        for world in (2, 8):
            for op in ("all_reduce", "all_gather", "reduce_scatter"):
                moved = traffic.collective(op, world) * (size * max(1.0, world / cores))
                found.scaling_calls[Call(world, op, size, "f32")] = {
                    round_: Timing(us, us) for round_, pace in paces.items()
                    for us in [scaling_model.moved_s(moved, pace) * 1e6]}
                found.call_paces[Call(world, op, size, "f32")] = paces
        steps = {0: Timing(100, 100), 1: Timing(110, 110)}
        found.scaling = {"local": {2: Scale(10**6, steps)}, "ddp": {2: Scale(10**6, steps)}}
        by_kind = {e.what: e for e in scaling_model.expectations(found)}
        self.assertAlmostEqual(by_kind["all_gather 16 MiB"].off, 0)
        self.assertAlmostEqual(by_kind["all_gather 16 MiB"].ratio.high, 1)
        self.assertGreater(by_kind["ddp"].expected, 105)
        self.assertLess(by_kind["ddp"].off, 0)
        self.assertEqual(traffic.strategy("ddp", 1).total, 0)

    def test_a_slow_collective_is_far_from_the_traffic_model(self) -> None:
        call = Call(2, "all_reduce", 16 << 20, "f32")
        found = Findings(call_paces={call: {0: Pace(1e-10, 1e-10)}},
                         scaling_calls={call: {0: Timing(1e6, 1e6)}})
        self.assertGreater(scaling_model.expectations(found)[0].off, 1)


if __name__ == "__main__":
    unittest.main()
