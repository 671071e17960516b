"""Tests the suite for two hosts with fakes, ranks started by another program, and the hosts themselves."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from bench.runner import (
    hosts_goal, hosts_report, hosts_suite, launched_ranks, machine, options, process, registry, report, trace_rows,
    traffic, two_hosts,
)
from bench.runner.bench import Bench
from bench.runner.failure import BenchFailure, NotRun
from bench.runner.findings import Findings
from bench.runner.hosts_findings import Hosted, Hosts, place
from bench.runner.launch import Job, Rank, start_here
from bench.runner.spread import Spread, Timing
from bench.runner.tests import stage
from bench.runner.two_hosts import GIGABIT, LINKS, SLOWEST, UNLIMITED, Link
from bench.runner.workers import Workers

_ROOT = Path(__file__).resolve().parents[3]
_LAUNCHER = Path(__file__).resolve().parent / "fake_mpirun.py"


class _Hosts:
    """One host that acts as two."""

    def __init__(self) -> None:
        self.links: list[str] = []
        self.looks = 0

    def limit(self, link: Link) -> None:
        self.links.append(link.name)

    def sent_bytes(self) -> tuple[int, ...]:
        """Shows no traffic at the first looks of a block; the fourth look, at its end, shows its bytes."""
        self.looks += 1
        return self.looks // 4 * 4_200_000, 0

    def launch(self, job: Job, into: list[Rank]) -> None:
        start_here(job, into)


class SuiteTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.addCleanup(lambda: self.assertEqual(process.children(), []))
        self.hosts = _Hosts()

    def run_suite(self, **settings: object) -> Bench:
        bench = stage.bench(self.folder, **settings)
        self.addCleanup(bench.journal.close)

        @contextlib.contextmanager
        def make_hosts() -> Iterator[_Hosts]:
            yield self.hosts

        hosts_suite.run(bench, make_hosts)
        return bench

    def records(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "results.jsonl").read_text().splitlines()]

    def test_the_suite_and_its_report(self) -> None:
        bench = self.run_suite(blocks=2, quick=True)
        self.assertEqual(bench.findings.warnings, [])
        self.assertEqual(set(bench.findings.hosts.found), {place(n, link) for n in (1, 2) for link in LINKS})
        place_ = machine.look(_ROOT, self.folder, None)
        page = report.write(bench.findings, place_, "bench/run", 2, 1.0, [], True, True)
        for part in ("## Two hosts", "### 2 x 2, 100 Mbit/s", "first bucket of `ddp` after 6 ms",
                     "The larger of floor and (first bucket + wire): 326 ms.",  # 6 ms, and 4 MB
                     "| tessera ddp | 1 | 1.00 | 4.20 | 4.00 | 336 | 2.00 | 2.00 |",
                     "| tessera ddp-powersgd | 1 | 1.00 | 4.20 | - | 336 | 2.00 | 2.00 |",
                     "| 10. 2 x 1, no limit: Gloo's DDP over ddp | >= 1 | 2.00 | 2.00 | met |",
                     "| 10. 2 x 2, 100 Mbit/s: bytes on the link over the formula, ddp | <= 1.06 | 1.05 | - | met |"):
            self.assertIn(part, page)
        self.assertRegex(page, r"2 x 1, ranks together: \d+ curves agree")

    def test_entries_take_turns_over_all_links(self) -> None:
        self.run_suite(blocks=2, wanted="^tessera (local|ddp|ddp-bf16)$")
        order = [(r["round"], r["link"], str(r["entry"]).split()[1]) for r in self.records()
                 if r["per_host"] == 1 and "round" in r]
        self.assertEqual(order[:7], [
            (0, "no limit", "local"), (0, "no limit", "ddp"), (0, "1 Gbit/s", "local"), (0, "1 Gbit/s", "ddp"),
            (0, "100 Mbit/s", "local"), (0, "100 Mbit/s", "ddp"), (0, "100 Mbit/s", "ddp-bf16")])
        self.assertEqual(order[7][2], "ddp")  # another entry begins
        self.assertEqual(self.hosts.links[-1], "no limit")

    def test_without_room_each_block_is_a_start(self) -> None:
        with mock.patch.object(hosts_suite, "available_mib", lambda: 0.0), \
                mock.patch.object(hosts_suite, "Workers", wraps=Workers) as start:
            bench = self.run_suite(blocks=1, wanted="^tessera zero3$")
        self.assertEqual(start.call_count, 2 * len(LINKS))
        self.assertEqual(len(bench.findings.hosts.found[place(2, SLOWEST)]["tessera zero3"].rounds), 1)

    def test_a_death_fails_the_run(self) -> None:
        with self.assertRaisesRegex(BenchFailure, "tessera zero3, rank 0: exited with code 3"):
            self.run_suite(blocks=1, our_mode="die", wanted="^tessera zero3$")


class ArithmeticTest(unittest.TestCase):
    def test_the_bound_is_the_floor_or_the_wire(self) -> None:
        hosts = Hosts(parameters=6_400_000, first_bucket_ms={1: Spread.of([200.0])})
        for link in LINKS:
            hosts.found[place(1, link)] = {
                "tessera local": Hosted({0: Timing(350, 340), 1: Timing(500, 490)}),
                "tessera ddp": Hosted({0: Timing(700, 700), 1: Timing(500, 500)}, [25.6e6])}
        found = Findings(hosts=hosts)
        expected = {UNLIMITED: (350, 500), GIGABIT: (404.8, 500), SLOWEST: (2248, 2248)}
        for link, ms in expected.items():
            bound = hosts.bound(place(1, link), hosts_goal.sent_formula(found, "ddp") or 0)
            self.assertEqual(tuple(bound[round_].median for round_ in (0, 1)), ms, link.name)
        seen = hosts_goal.over_bound(place(1, UNLIMITED))(found)
        assert seen is not None
        self.assertEqual((seen.low, seen.high), (1.0, 2.0))
        self.assertEqual(hosts.bound(place(2, SLOWEST), 1.0), {})  # nothing is known about it
        for one in hosts_goal.goals():
            self.assertIsNone(one.measure(Findings()), one.name)
        self.assertEqual(hosts_report.text(Findings()), "")

    def test_what_a_host_sends(self) -> None:
        def sent(name: str, hosts: int = 2) -> float | None:
            return traffic.between_hosts(name, hosts, kept=0.25)

        self.assertEqual([sent(name) for name in ("local", "ddp", "ddp-bf16", "zero2", "zero3")],
                         [0.0, 1.0, 0.5, 1.0, 1.375])
        self.assertEqual(sent("ddp", 4), 1.5)
        self.assertEqual(sent("zero1", 1), 0.0)
        self.assertIsNone(sent("ddp-powersgd"))
        found = Findings(hosts=Hosts(parameters=6_417_664))
        self.assertAlmostEqual((hosts_goal.sent_formula(found, "zero3") or 0) / 1e6, 36.73, delta=0.01)
        self.assertIsNone(hosts_goal.sent_formula(Findings(), "ddp"))

    def test_a_rank_has_a_core_or_shares_those_of_its_host(self) -> None:
        def split(cores: int, per_host: int) -> list[list[int] | None]:
            return [sorted(c) if c else None for c in two_hosts.split_cores(list(range(cores)), per_host)]

        self.assertEqual(split(2, 1), [[0], [1]])
        self.assertEqual(split(2, 2), [[0], [0], [1], [1]])
        self.assertEqual(split(5, 3), [[0, 1]] * 3 + [[2, 3]] * 3)
        self.assertEqual(split(8, 2), [[0], [1], [2], [3]])
        self.assertEqual(split(1, 1), [None, None])

    def test_who_takes_part(self) -> None:
        programs = registry.Programs(Path("/build"), Path("/peers"), "/python")
        one, two = (registry.hosts(programs, n, Path("/text"), quick=False) for n in (1, 2))
        self.assertEqual([e.name for e in one], [
            "pytorch local, mmap_max 0", "tessera local", "pytorch ddp, mmap_max 0", "pytorch fsdp2, mmap_max 0",
            "tessera ddp", "tessera zero1", "tessera zero2", "tessera zero3", "pytorch ddp-bf16, mmap_max 0",
            "tessera ddp-bf16", "pytorch ddp-powersgd, mmap_max 0", "tessera ddp-powersgd"])
        self.assertEqual([e.name for e in two], [e.name for e in one[:8] if e.name != "tessera zero1"])
        self.assertEqual([e.name for e in one if e.mpi], [e.name for e in one if e.name.startswith("tessera")])
        self.assertEqual([e.name for e in one if not registry.is_over(e.name, slowest=False)],
                         [e.name for e in one[8:]])
        self.assertNotIn("hosts", options.parse([], _ROOT).suites)

    def test_the_first_bucket_is_ready_when_the_last_rank_has_it(self) -> None:
        def span(rank: int, track: str, name: str, begin: float, end: float) -> dict[str, object]:
            return {"ph": "X", "cat": track, "name": name, "pid": rank, "tid": 1, "ts": 1e3 * begin,
                    "dur": 1e3 * (end - begin)}

        events = []
        for rank in (0, 1):
            for step in (0, 100):
                events += [span(rank, "compute", "forward", step, step + 30),
                           span(rank, "compute", "backward", step + 30, step + 90),
                           span(rank, "reduce", "late", step + 80, step + 90),
                           span(rank, "reduce", "early", step + 40 + 7 * rank, step + 60)]
            events.append(span(rank, "compute", "forward", 200, 210))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"traceEvents": events}, file)
            file.flush()
            self.assertEqual(trace_rows.first_reductions(Path(file.name)), [47.0, 47.0])


class LaunchedTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.logs = Path(folder.name)
        stage.leave_no_orphans(self)

    def start(self, world: int = 3, launcher: tuple[str, ...] = (), **environment: str) -> Workers:
        command = launcher or (sys.executable, str(_LAUNCHER), str(world))

        def launch(job: Job, into: list[Rank]) -> None:
            launched_ranks.start(job, into, command, process.clean_environment(environment), job.pins)

        entry = stage.entry().with_arguments("--model", "A")
        workers = Workers(entry, world, self.logs, True, launch)
        self.addCleanup(workers.kill)
        return workers

    def test_answers_come_by_rank_and_all_leave(self) -> None:
        workers = self.start(2, FAKE_MS="3")
        workers.wait("idle", 20)
        workers.wait("ready", 20)
        self.assertEqual([a["ms"] for a in workers.ask("steps 2", "steps", 20)], [[3.0, 3.0]] * 2)
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            self.assertEqual([os.sched_getaffinity(pid) for pid in workers.pids], [{c} for c in cores[:2]])
        self.assertEqual(len(set(workers.pids)), 2)
        self.assertIsNone(workers.quit())

    def test_a_rank_that_dies_fails_with_its_log(self) -> None:
        workers = self.start(FAKE_MODE="die", FAKE_RANK="1")
        workers.wait("idle", 20)
        workers.wait("ready", 20)
        with self.assertRaisesRegex(BenchFailure, r"rank \d: exited with code 3 during `steps 1`"):
            workers.ask("steps 1", "steps", 20)
        self.assertIn("out of luck", (self.logs / "fake-one.rank1.log").read_text())

    def test_a_launcher_that_starts_nobody_does_not_hang(self) -> None:
        began = time.monotonic()
        workers = self.start(launcher=("sh", "-c", "echo no such host >&2; exit 5"))
        with self.assertRaisesRegex(BenchFailure, "rank 0: exited with code 5 during the start; log: .*\n.*no such"):
            workers.wait("idle", 60)
        self.assertLess(time.monotonic() - began, 30)

    def test_kill_ends_ranks_and_launcher(self) -> None:
        workers = self.start()
        workers.wait("idle", 20)
        pids = workers.pids
        workers.kill()
        process.kill_orphans()
        for pid in pids:
            with self.assertRaises(ProcessLookupError):
                os.kill(pid, 0)


class TwoHostsTest(unittest.TestCase):
    def test_where_they_cannot_be_made_the_suite_is_not_run(self) -> None:
        with (mock.patch.object(shutil, "which", lambda name: f"/usr/bin/{name}"),
              mock.patch.object(os, "geteuid", lambda: 1000),
              self.assertRaisesRegex(NotRun, "need root")):
            two_hosts.TwoHosts()
        environment = {**os.environ, "PATH": "/nonexistent"}
        done = subprocess.run([sys.executable, "-B", "-m", "bench.runner", "--suite", "hosts"], cwd=_ROOT,
                              capture_output=True, text=True, timeout=60, env=environment)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("--suite hosts: not run: there is no ip, tc", done.stderr)

    def test_names_addresses_limits_and_counts(self) -> None:
        try:
            hosts = two_hosts.TwoHosts()
        except NotRun as why:
            self.skipTest(f"not run: {why}")
        stage.leave_no_orphans(self)
        with hosts:
            def out(host: int, *command: str) -> str:
                return subprocess.run((*hosts.enter(host), *command), capture_output=True, text=True,
                                      timeout=20, check=True).stdout

            self.assertEqual([out(host, "hostname").strip() for host in (0, 1)], ["hostA", "hostB"])
            self.assertEqual(out(1, "pwd").strip(), os.getcwd())
            self.assertIn("10.77.0.1", out(1, "getent", "hosts", "hostA"))
            before = hosts.sent_bytes()
            send = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(bytes(1000), ('hostB', 9))"
            out(0, sys.executable, "-c", send)
            self.assertGreater(hosts.sent_bytes()[0] - before[0], 1000)
            for link in LINKS:
                hosts.limit(link)
                shown = out(1, "tc", "qdisc", "show", "dev", "link0")
                self.assertEqual("tbf" in shown, link.mbit is not None, shown)
            staying = subprocess.Popen((*hosts.enter(1), "sleep", "99"))
            while os.readlink(f"/proc/{staying.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                time.sleep(0.01)
        self.assertEqual(staying.wait(10), -9)


if __name__ == "__main__":
    unittest.main()
