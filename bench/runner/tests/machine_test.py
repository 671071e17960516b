"""Tests the facts about the machine in the header of the results."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from bench.runner import machine


class MachineTest(unittest.TestCase):
    def test_libtorch_is_named_by_its_headers(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder)
            self.assertEqual(machine.look(build, build, None).libtorch, "unknown")
            (build / "CMakeCache.txt").write_text(f"TESSERA_TORCH:PATH={folder}/torch\n")
            self.assertEqual(machine.look(build, build, None).libtorch, "unknown")
            for header, minor in (("csrc/api/include/torch", 11), ("headeronly", 15)):
                place = build / "torch" / "include" / "torch" / header
                place.mkdir(parents=True)
                (place / "version.h").write_text(
                    "#define TORCH_VERSION_MAJOR 2\n\n/// Indicates.\n"
                    f"#define TORCH_VERSION_MINOR {minor}\n#define TORCH_VERSION_PATCH 0\n"
                    "#define TORCH_VERSION_ABI_TAG 0\n")
                self.assertEqual(machine.look(build, build, None).libtorch, f"2.{minor}.0")


if __name__ == "__main__":
    unittest.main()
