"""Tests the suite for one GPU, with fakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench.runner import gpu_goal, gpu_report, gpu_suite, options
from bench.runner.bench import Bench
from bench.runner.failure import BenchFailure
from bench.runner.findings import Gpu
from bench.runner.spread import Timing
from bench.runner.tests import stage

_ROOT = Path(__file__).resolve().parents[3]


class GpuTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        pretend = mock.patch.dict(os.environ, {"TESSERA_BENCH_FAKE_GPU": "1"})
        pretend.start()
        self.addCleanup(pretend.stop)

    def bench(self, **settings: object) -> Bench:
        bench = stage.bench(self.folder, **settings)
        self.addCleanup(bench.journal.close)
        return bench

    def test_the_suite_and_its_report(self) -> None:
        bench = self.bench(blocks=2, quick=True)
        gpu_suite.run(bench, options.GPU_MODELS)
        self.assertEqual(list(bench.findings.gpu), ["gpt2-1k", "gpt2-16k", "deep-20"])
        self.assertEqual(bench.findings.warnings, [])
        page = gpu_report.text(bench.findings)
        for part in ("a pretended GPU", "### gpt2-16k", "| 100 / 3 / 2 |", "2.000",
                     "| gpt2-1k: tessera ddp over unwrapped LibTorch, step time | <= 1.01 | 1.000 | met |",
                     "| gpt2-1k: tessera ddp over FSDP2 eager, tokens/s | >= 1 | 2.000 | met |",
                     "| gpt2-1k: tessera zero3, allocator off the formula | <= 0.02 | 0.010 | met |"):
            self.assertIn(part, page)
        records = [json.loads(line) for line in (self.folder / "results.jsonl").read_text().splitlines()]
        order = [r["entry"] for r in records if r["model"] == "gpt2-1k" and r.get("round") == 1]
        self.assertEqual(order[-1], "libtorch local")  # another entry begins in each round

    def test_what_does_not_fit_is_left_out_by_name(self) -> None:
        bench = self.bench(blocks=1, quick=True, wanted="^(libtorch local|tessera ddp)$")
        with mock.patch.object(gpu_suite, "_deepest", lambda _: 21):
            gpu_suite.run(bench, options.GPU_MODELS)
        self.assertEqual(bench.findings.warnings,
                         ["deep-21: libtorch local does not fit", "deep-21: tessera ddp does not fit"])
        self.assertEqual(bench.findings.gpu["deep-21"], {})

    def test_only_the_models_asked_for(self) -> None:
        asked = options.parse(["--suite", "gpu", "--models", "gpt2-16k"], _ROOT)
        bench = self.bench(blocks=1, quick=True, wanted="^(libtorch local|tessera ddp)$")
        gpu_suite.run(bench, asked.gpu_models)
        self.assertEqual(list(bench.findings.gpu), ["gpt2-16k"])
        with self.assertRaises(SystemExit):
            options.parse(["--suite", "train", "--models", "gpt2-16k"], _ROOT)

    def test_a_death_fails_the_run(self) -> None:
        bench = self.bench(blocks=1, quick=True, our_mode="die", wanted="^tessera ddp$")
        with self.assertRaisesRegex(BenchFailure, "tessera ddp, rank 0: exited with code 3"):
            gpu_suite.run(bench, options.GPU_MODELS)

    def test_a_missed_goal_says_so(self) -> None:
        slow = Gpu(tokens=1, rounds={0: Timing(1.02, 1.02)}, held_bytes=97, formula_bytes=100)
        fast = Gpu(tokens=1, rounds={0: Timing(1.0, 1.0)})
        found = {"gpt2-1k": {"libtorch local": fast, "tessera ddp": slow}}
        results = {row[0]: row[3] for row in gpu_goal.rows(found)}
        self.assertEqual(results["gpt2-1k: tessera ddp over unwrapped LibTorch, step time"], "**missed**")
        self.assertEqual(results["gpt2-1k: tessera ddp, allocator off the formula"], "**missed**")
        self.assertEqual(results["gpt2-1k: tessera zero3 over FSDP2, peak memory"], "not measured")

    def test_it_refuses_where_there_is_no_gpu(self) -> None:
        with mock.patch.dict(os.environ, {"TESSERA_BENCH_FAKE_GPU": "", "PATH": "/usr/bin:/bin"}), \
                mock.patch.object(Path, "exists", lambda _: False), \
                self.assertRaisesRegex(BenchFailure, "--suite gpu: got no GPU"):
            gpu_suite.present()
        self.assertNotIn("gpu", options.parse([], _ROOT).suites)
        if not Path("/dev/nvidia0").exists():
            environment = {k: v for k, v in os.environ.items() if k != "TESSERA_BENCH_FAKE_GPU"}
            done = subprocess.run([_ROOT / "bench" / "run", "--suite", "gpu", "--python", sys.executable],
                                  capture_output=True, text=True, timeout=60, env=environment)
            self.assertEqual(done.returncode, 1)
            self.assertIn("--suite gpu: got no GPU", done.stderr)


if __name__ == "__main__":
    unittest.main()
