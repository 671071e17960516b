"""Tests that workers end in order or with an error that names the entry, the rank, the fault and the log."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
import unittest
from pathlib import Path

from bench.runner import process
from bench.runner.workers import Workers, check_numbers
from bench.runner.failure import BenchFailure
from bench.runner.tests import stage


class WorkersTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.logs = Path(folder.name)
        self.addCleanup(lambda: self.assertEqual(process.children(), []))

    def start(self, world: int = 2, **environment: str) -> Workers:
        workers = Workers(stage.entry(**environment).with_arguments("--model", "A"), world, self.logs)
        self.addCleanup(workers.kill)
        return workers

    def fails(self, pattern: str, workers: Workers, timeout_s: float = 20.0) -> None:
        began = time.monotonic()
        with self.assertRaisesRegex(BenchFailure, pattern):
            workers.wait("idle", timeout_s)
            workers.wait("ready", timeout_s)
            answers = workers.ask("steps 3", "steps", timeout_s)
            check_numbers(workers, answers, "ms", 3)
        self.assertLess(time.monotonic() - began, 60)
        pids = workers.pids
        workers.kill()
        for pid in pids:
            with self.assertRaises(ProcessLookupError):
                os.kill(pid, 0)

    def test_answers_come_by_rank(self) -> None:
        for world in (1, 2, 3):
            workers = self.start(world)
            self.assertEqual([a["private_kib"] for a in workers.wait("idle", 20)], [1000] * world)
            workers.wait("ready", 20)
            answers = workers.ask("steps 3", "steps", 20)
            self.assertEqual(check_numbers(workers, answers, "ms", 3), [[1.0] * 3] * world)
            self.assertIsNone(workers.quit())

    def test_one_process_in_place_of_all_has_their_cores(self) -> None:
        alone = dataclasses.replace(stage.entry(), alone=True).with_arguments("--model", "A")
        cores = sorted(os.sched_getaffinity(0))
        for world, pinned, expected in ((2, True, set(cores[:2])), (1, True, set(cores[:1])),
                                        (2, False, set(cores))):
            with Workers(alone, world, self.logs, pinned) as workers:
                self.assertEqual(workers.world, 1)
                self.assertEqual(len(workers.wait("idle", 20)), 1)
                self.assertEqual([os.sched_getaffinity(pid) for pid in workers.pids], [expected])
                environment = Path(f"/proc/{workers.pids[0]}/environ").read_text().split("\0")
                self.assertIn("WORLD_SIZE=1", environment)

    def test_each_rank_has_a_core_if_there_are_enough(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        for world in (1, len(cores) + 1):
            expected = [{cores[0]}] if world == 1 else [set(cores)] * world
            with self.start(world) as workers:
                workers.wait("idle", 20)
                self.assertEqual([os.sched_getaffinity(pid) for pid in workers.pids], expected)

    def test_a_rank_that_exits_is_named_with_its_log(self) -> None:
        workers = self.start(FAKE_MODE="die", FAKE_RANK="1")
        self.fails(
            r"fake one, rank 1: exited with code 3 during `steps 3`; log: .*fake-one\.rank1\.log\n"
            r"  \| fake: out of luck", workers)

    def test_a_rank_that_is_killed_is_named(self) -> None:
        self.fails("rank 1: died of SIGKILL during `steps 3`; log: ",
                   self.start(FAKE_MODE="signal", FAKE_RANK="1"))

    def test_a_rank_that_hangs_meets_the_deadline(self) -> None:
        self.fails("fake one, rank 2: no 'steps' within 3 s of `steps 3`; log: ",
                   self.start(3, FAKE_MODE="hang", FAKE_RANK="2"), 3)

    def test_a_rank_that_never_begins_meets_the_deadline(self) -> None:
        self.fails("rank 0: no 'idle' within 2 s of the start; log: ",
                   self.start(FAKE_MODE="mute"), 2)

    def test_garbage_is_shown(self) -> None:
        self.fails("rank 0: printed 'Segmentation fault, says nobody', expected JSON, during",
                   self.start(FAKE_MODE="garbage"))

    def test_another_event_is_shown(self) -> None:
        self.fails("rank 0: printed '.*surprise.*', expected event 'steps'",
                   self.start(FAKE_MODE="other_event"))

    def test_fewer_numbers_than_asked_for(self) -> None:
        self.fails("rank 0: 'ms' is not 3 finite numbers; log: ", self.start(FAKE_MODE="short"))

    def test_a_number_that_is_none(self) -> None:
        self.fails("rank 0: 'ms' is not 3 finite numbers", self.start(FAKE_MODE="not_a_number"))

    def test_quit_reports_who_stays_and_who_fails(self) -> None:
        for mode, pattern in (("stay", "rank 0: still runs 1 s after `quit`"),
                              ("fail_late", "rank 0: exited with code 9 at `quit`")):
            workers = self.start(FAKE_MODE=mode)
            workers.wait("idle", 20)
            self.assertRegex(workers.quit(1.0) or "nothing", pattern)

    def test_a_program_that_is_not_there(self) -> None:
        nobody = dataclasses.replace(stage.entry(), command=("/nonexistent/program",))
        with self.assertRaisesRegex(BenchFailure, "fake one: cannot be started: "):
            Workers(nobody, 2, self.logs)

    def test_leaving_the_context_kills(self) -> None:
        with self.start() as workers:
            pids = workers.pids
        for pid in pids:
            with self.assertRaises(ProcessLookupError):
                os.kill(pid, 0)

    def test_entries_inherit_no_allocator_or_job_settings(self) -> None:
        os.environ["MALLOC_ARENA_MAX"] = os.environ["RANK"] = "7"
        self.addCleanup(os.environ.pop, "MALLOC_ARENA_MAX")
        self.addCleanup(os.environ.pop, "RANK")
        found = process.clean_environment({"MALLOC_MMAP_MAX_": "0"})
        self.assertNotIn("MALLOC_ARENA_MAX", found)
        self.assertNotIn("RANK", found)
        self.assertEqual(found["MALLOC_MMAP_MAX_"], "0")


if __name__ == "__main__":
    unittest.main()
