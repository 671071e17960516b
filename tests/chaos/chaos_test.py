"""Controls of chaos.py: what it must notice, it does.

    python3 -B tests/chaos/chaos_test.py <folder of the programs>
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import chaos
import launch
from drawn import KINDS, Case, Fault, When, Whom, draw
from traces import MARK, Traces, ports_of, unknown_in

_STAYS = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(flush=True); time.sleep(600)"


def _kind(name: str, whom: Whom):
    return next(kind for kind in KINDS if kind.name == name and kind.whom == whom)


class WhatIsLeft(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.mark = f"{os.getpid()}-that-stays"
        self.traces = Traces(self.mark, [self.folder])

    def test_nothing(self):
        self.assertEqual(self.traces.left(), [])

    def test_a_process_and_its_port(self):
        with subprocess.Popen([sys.executable, "-c", _STAYS], env=os.environ | {MARK: self.mark},
                              stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            left, ports = self.traces.left(0.05), ports_of([process.pid])
            process.kill()
        self.assertRegex("\n".join(left), f"^process {process.pid} ")
        self.assertRegex("\n".join(ports), f"^process {process.pid} waits for connections at 0100007F:")
        self.assertEqual(self.traces.left(), [])

    def test_a_file(self):
        (self.folder / "deep").mkdir()
        (self.folder / "deep" / "store").touch()
        self.assertIn(f"file {self.folder}/deep/store", self.traces.left())

    @unittest.skipUnless(os.path.isdir("/dev/shm"), "/dev/shm is not there")
    def test_memory_that_no_process_uses(self):
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as used:
            self.assertNotIn(used.name, self.traces.left())
        left = pathlib.Path(f"/dev/shm/{self.mark}")
        left.touch()
        self.addCleanup(left.unlink)
        self.assertIn(str(left), self.traces.left())

    def test_names_in_a_run(self):
        nonce = "0123456789abcdef" * 2
        for name in ("lock", "step-3", f"step-4.tmp-{nonce}", f"step-3.damaged-{nonce}", "step-5.new"):
            (self.folder / name).touch()
        odd = [f"{self.folder.name}/{name}" for name in (f"step-3.damaged-{nonce}", "step-5.new")]
        self.assertEqual(unknown_in(self.folder, has_ended_well=False), odd)
        self.assertIn(f"{self.folder.name}/step-4.tmp-{nonce}", unknown_in(self.folder, has_ended_well=True))


class Launches(unittest.TestCase):
    def launched(self, script: str, limit_s: float) -> launch.Story:
        story = launch.Story()
        with mock.patch.object(launch, "LIMIT_S", limit_s):
            launch.Launch(["sh", "-c", script], dict(os.environ), pathlib.Path("/"), "none", [], story).run()
        return story

    def test_one_that_hangs(self):
        self.assertIn("the job hangs", "\n".join(self.launched("exec sleep 600", 0.1).complaints))

    def test_a_failure_of_a_rank_that_nothing_befell(self):
        said = "tessera-run: first failure: rank 1 (pid 7) exited with code 1"
        self.assertEqual(self.launched(f"echo '{said}'", 60.0).complaints,
                         [f"expected a failure of nobody, got {said}"])


class Draws(unittest.TestCase):
    def test_every_fault_at_every_moment(self):
        cases = [draw(seed, 3, ["ddp", "zero3"], has_library=True) for seed in range(4000)]
        seen = {(fault.kind, fault.when, fault.rank) for case in cases for fault in case.faults}
        self.assertEqual(seen, {(kind, when, rank) for kind in KINDS for when in When for rank in range(3)})
        for case in cases:
            codes = [code for fault in case.faults for code in fault.kind.codes]
            self.assertEqual(len(codes), len(set(codes)), case)
        self.assertEqual(cases[:9], [draw(seed, 3, ["ddp", "zero3"], has_library=True) for seed in range(9)])


class RunsThatAreForged(unittest.TestCase):
    """Against a real run without faults."""

    programs: str

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        cls.runs = chaos.Runs(chaos.parse(["--programs", cls.programs, "--ranks=2"]), cls.folder)
        cls.straight = cls.runs.straight("zero2")

    def complaints(self, forge=lambda story, folder: None) -> str:
        copy = self.folder / "forged"
        shutil.copytree(self.folder / "straight-0", copy)
        story = launch.Story(hashes=list(self.straight.hashes))
        forge(story, copy)
        self.runs.compare(story, self.straight, copy)
        shutil.rmtree(copy)
        return "\n".join(story.complaints)

    def test_the_run_itself(self):
        self.assertEqual(self.complaints(), "")

    def test_another_hash_or_none(self):
        self.assertRegex(self.complaints(lambda story, _: story.hashes.append("0" * 16)), "parameters 0{16} instead")
        self.assertRegex(self.complaints(lambda story, _: story.hashes.clear()), "does not end with a hash")

    def test_other_losses(self):
        def forge(_, folder):
            lines = (folder / "losses").read_text().splitlines()
            (folder / "losses").write_text("\n".join(lines[:-1]))
        self.assertRegex(self.complaints(forge), "losses differ")

    def test_other_checkpoints(self):
        step = f"step-{chaos.STEPS}"
        self.assertRegex(self.complaints(lambda _, folder: (folder / "run" / f"{step}.tmp").touch()), "is left: run/")
        self.assertRegex(self.complaints(lambda _, folder: shutil.rmtree(folder / "run" / step)), r"got \[\]")
        def forge(_, folder):
            file = next((folder / "run" / step).glob("*.safetensors"))
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        self.assertRegex(self.complaints(forge), "tessera-checkpoint diff .* ends with")

    def test_a_run_that_begins_anew_with_another_model(self):
        fault = Fault(_kind("SIGKILL", Whom.LAUNCHER), 0, When.LINE, 3, 0.0, 0.0)

        def lose(run: pathlib.Path) -> list[str]:
            shutil.rmtree(run, ignore_errors=True)
            return ["--seed=2"]
        story = self.runs.judged(Case(1, ("zero2", "zero2"), 1, (fault,)), between=lose)
        said = "\n".join(story.complaints)
        self.assertEqual(len(story.strikes), 1, story.lines)
        self.assertRegex(said, "instead of " + self.straight.hashes[0])
        self.assertRegex(said, "losses differ")


if __name__ == "__main__":
    RunsThatAreForged.programs = sys.argv.pop(1)
    unittest.main()
