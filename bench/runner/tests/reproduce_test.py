"""Tests that README's numbers depend only on the raw results."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import unittest
import xml.dom.minidom
from pathlib import Path
from unittest import mock

from bench.runner import reproduce
from bench.runner.failure import BenchFailure

_PAGE = """# A page

| use it when | flag | MiB per rank | MiB without sharing |
|---|---|--:|--:|
| all fits | `ddp` | 0 | 0 |
| nothing fits | `zero3` | 0 | 0 |

<!-- numbers: make reproduce, from runs/one -->
<!-- numbers: end -->
The end.
"""
_HEADER = """# Results

| | |
|---|---|
| machine | AMD EPYC, 2 cores, 24 GiB |
| Tessera | {commit}, c++ (Debian 12.2.0-14+deb12u1) 12.2.0, LibTorch 2.11.0 |
| peers | PyTorch 2.11.0+cu130, Gloo over the loopback interface |
"""
_MEMORY = ("<title>ddp, parameters: 72.78</title><title>ddp, optimizer: 145.56</title>"
           "<title>zero3, parameters: 18.20</title><title>zero3:apart, parameters: 44.60</title>")


def _step(entry: str, *ms: float, model: str = "A", key: str = "entry") -> list[dict[str, object]]:
    return [{"suite": "train", "model": model, key: entry, "round": i, "kept": True,
             "median_ms": one, "min_ms": one} for i, one in enumerate(ms)]


_RESULTS = [
    *_step("tessera local", 100, 100, key="contestant"),  # the name in older runs
    *_step("pytorch local", 104, 104),
    *_step("pytorch ddp", 130, 134), *_step("pytorch ddp, mmap_max 0", 110, 120),
    *_step("tessera ddp", 101, 103), *_step("tessera zero3", 90, 98),
    {"suite": "train", "model": "A", "entry": "tessera ddp", "round": 0, "kept": False,
     "median_ms": 9e9, "min_ms": 9e9},
    {"suite": "collectives", "entry": "tessera"},
]


class ReproduceTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "docs" / "images").mkdir(parents=True)
        (self.root / "docs" / "images" / "memory.svg").write_text(_MEMORY)
        (self.root / "README.md").write_text(_PAGE)
        self.run_of("one", _RESULTS)
        root = mock.patch.object(reproduce, "_ROOT", self.root)
        root.start()
        self.addCleanup(root.stop)

    def run_of(self, name: str, results: list[dict[str, object]], commit: str = "9a6c791") -> None:
        folder = self.root / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.md").write_text(_HEADER.format(commit=commit))
        (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in results))

    def reproduce(self, *arguments: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            return reproduce.main(arguments), out.getvalue()

    def page(self) -> str:
        return (self.root / "README.md").read_text()

    def test_it_writes_what_was_measured_once(self) -> None:
        self.assertEqual(self.reproduce()[0], 0)
        for line in ("| `ddp`, DDP; 6.4 M parameters | 1.02 [1.01..1.03] | "
                     "1.15 [1.10..1.20], ddp, mmap_max 0 |",
                     "| `zero3` with one shared copy, FSDP2; 6.4 M parameters | 0.94 [0.90..0.98] | "
                     "not measured |",
                     "2 cores (AMD EPYC)", "commit 9a6c791", "](runs/one/results.jsonl)",
                     "| all fits | `ddp` | 218 | 218 |", "| nothing fits | `zero3` | 18 | 45 |",
                     "The end."):
            self.assertIn(line, self.page())
        self.assertEqual(self.reproduce("--check"), (
            0, "docs/images/step-time.svg: as measured\nREADME.md: as measured\n"))
        before = self.page()
        self.reproduce()
        self.assertEqual(self.page(), before)

    def test_every_round_is_a_dot(self) -> None:
        self.reproduce()
        figure = xml.dom.minidom.parse(str(self.root / "docs" / "images" / "step-time.svg"))
        dots = figure.getElementsByTagName("circle")
        # Two of each except the floor; a repeated block does not appear.
        self.assertEqual(len(dots), 10)

    def test_an_edited_number_is_found(self) -> None:
        self.reproduce()
        figure = self.root / "docs" / "images" / "step-time.svg"
        for path, old, new in ((self.root / "README.md", "1.02 [", "1.01 ["),
                               (self.root / "README.md", "| 218 | 218 |", "| 218 | 217 |"),
                               (figure, 'r="3.5"', 'r="3.6"')):
            text = path.read_text()
            self.assertIn(old, text)
            path.write_text(text.replace(old, new, 1))
            code, said = self.reproduce("--check")
            self.assertEqual(code, 1)
            self.assertRegex(said, f"(?s){path.name}.*\\+.*{path.name}: differs")
            self.assertNotEqual(path.read_text(), text)  # --check has written nothing
            path.write_text(text)

    def test_changed_results_are_found(self) -> None:
        self.reproduce()
        self.run_of("one", [*_RESULTS, *_step("tessera ddp", 150, 150)])
        code, said = self.reproduce("--check")
        self.assertEqual(code, 1)
        self.assertIn("+| `ddp`, DDP; 6.4 M parameters | 1.50 |", said)

    def test_another_run_brings_its_entries(self) -> None:
        self.run_of("two", [
            *_RESULTS, *_step("tessera zero3-apart", 120, 122), *_step("libtorch threads", 97, 99),
            *_step("pytorch fsdp2", 160, 160), *_step("tessera local", 10, 10, model="C"),
            *_step("tessera zero3-apart", 11, 11, model="C"),
            *({"suite": "memory", "model": "C", "entry": entry, "idle_kib": [1024], "peak_kib": [peak * 1024],
               "after_kib": [1024]} for entry, peak in (
                   ("tessera zero3", 963), ("pytorch fsdp2", 2494),
                   ("pytorch fsdp2, mmap_threshold 1 MiB", 1047)))])
        self.assertEqual(self.reproduce("--run", str(self.root / "runs" / "two"))[0], 0)
        for line in ("<!-- numbers: make reproduce, from runs/two -->",
                     "| `zero3` without a shared copy, FSDP2; 6.4 M parameters | 1.21 [1.20..1.22] | 1.60, fsdp2 |",
                     "| `zero3` without a shared copy, FSDP2; 91 M parameters | 1.10 | not measured |",
                     "| peak MiB per rank over idle, `zero3`, FSDP2; 91 M parameters | 962 | 2,493, fsdp2; "
                     "1,046, fsdp2, mmap_threshold 1 MiB |", "[memory](runs/two/memory.svg)"):
            self.assertIn(line, self.page())
        section = self.page().partition("PyTorch, fastest variant |\n|---|---|---|\n")[2]
        self.assertEqual(section.partition("<!--")[0].count("\n"), 5)
        figure = (self.root / "docs" / "images" / "step-time.svg").read_text()
        self.assertIn(">libtorch threads</text>", figure)
        self.assertIn(">one process, two threads</text>", figure)
        self.assertIn("91 M parameters", figure)
        self.assertEqual(self.reproduce("--check")[0], 0)  # README now names it

    def test_what_cannot_be_quoted_is_refused(self) -> None:
        self.run_of("dirty", _RESULTS, "9a6c791 with local changes")
        self.run_of("quick", _RESULTS)
        page = self.root / "runs" / "quick" / "results.md"
        page.write_text("**A smoke test (`--quick`)**\n" + page.read_text())
        self.run_of("nameless", _RESULTS)
        page = self.root / "runs" / "nameless" / "results.md"
        page.write_text(page.read_text().replace("LibTorch 2.11.0", "LibTorch unknown"))
        self.run_of("garbled", [{"suite": "train"}])
        self.run_of("floorless", _step("tessera ddp", 100))
        for run, message in (("dirty", "was measured at '9a6c791 with local changes'"),
                             ("quick", "got a smoke test"), ("nameless", "names no machine, commit or peers"), ("nowhere", "No such file"),
                             ("garbled", "results.jsonl:1: not a result"),
                             ("floorless", "the run trained none of the models A, C without")):
            code, said = self.reproduce("--run", str(self.root / "runs" / run))
            self.assertEqual(code, 1)
            self.assertIn(message, said)
        self.assertEqual(self.page(), _PAGE)

    def test_a_page_without_marks_or_rows_is_refused(self) -> None:
        for missing, message in (("<!-- numbers: end -->", "README.md: got 0 sections between"),
                                 ("`", "README.md: has no rows of strategies")):
            (self.root / "README.md").write_text(_PAGE.replace(missing, ""))
            code, said = self.reproduce()
            self.assertEqual(code, 1)
            self.assertIn(message, said)

    def test_the_figure_of_memory_comes_from_the_program(self) -> None:
        programs = self.root / "bin"
        programs.mkdir()
        launcher = programs / "tessera-run"
        launcher.write_text(f'#!/bin/sh\n[ "$4" = "{programs}/memory_compare" ] && [ "$5" = --svg ] && '
                            f"sed s/18.20/18.80/ {self.root}/docs/images/memory.svg >$6\n")
        launcher.chmod(0o755)
        code, said = self.reproduce("--check", "--programs", str(programs))
        self.assertEqual(code, 1)
        self.assertIn("docs/images/memory.svg: differs", said)
        self.assertEqual(self.reproduce("--programs", str(programs))[0], 0)
        self.assertIn("| nothing fits | `zero3` | 19 | 45 |", self.page())
        launcher.write_text("#!/bin/sh\necho no memory >&2; exit 3\n")
        with self.assertRaisesRegex(BenchFailure, "(?s)exited with code 3.*no memory"):
            reproduce.memory_figure(programs)
        with self.assertRaisesRegex(BenchFailure, "tessera-run: No such file"):
            reproduce.memory_figure(self.root)


if __name__ == "__main__":
    unittest.main()
