"""Tests the entries of the suites."""

from __future__ import annotations

import unittest
from pathlib import Path

from bench.runner import registry
from bench.runner.registry import Programs

_PROGRAMS = Programs(Path("/build"), Path("/peers"), "/python")
_TEXT = Path("/text")
_APART = ["tessera zero1-apart", "tessera zero2-apart", "tessera zero3-apart"]


def _names(found: list[registry.Entry]) -> list[str]:
    return [c.name for c in found]


class RegistryTest(unittest.TestCase):
    def test_every_model_is_trained_with_a_copy_per_rank_and_by_one_process(self) -> None:
        for model in ("A", "S", "B", "C", "MLP"):
            names = _names(registry.training(_PROGRAMS, model, _TEXT, quick=False))
            self.assertEqual([n for n in names if "apart" in n], _APART, model)
            self.assertEqual(names.count(registry.THREADS), 1)
            self.assertEqual(len(names), len(set(names)))

    def test_one_process_takes_the_batches_of_all_ranks(self) -> None:
        found = registry.training(_PROGRAMS, "A", _TEXT, quick=True)
        entry, = (c for c in found if c.name == registry.THREADS)
        self.assertTrue(entry.alone)
        self.assertEqual(entry.command[-4:], ("--strategy", "local", "--threads", str(registry.RANKS)))
        self.assertEqual([c.name for c in found if c.alone], [registry.THREADS])
        self.assertNotIn(registry.THREADS, registry.FLOORS)  # its losses are those of all ranks

    def test_memory_has_fsdp2_under_each_setting_of_malloc(self) -> None:
        names = _names(registry.memory(_PROGRAMS, "C", _TEXT, quick=False))
        self.assertEqual([n for n in names if n.startswith("pytorch fsdp2") and "keep" not in n],
                         ["pytorch fsdp2", "pytorch fsdp2, mmap_threshold 1 MiB", "pytorch fsdp2, mmap_max 0"])
        self.assertEqual([n for n in names if "apart" in n], _APART)
        self.assertNotIn(registry.THREADS, names)  # it is more than one rank's memory

    def test_each_form_of_gradients_runs_beside_the_same_of_ddp(self) -> None:
        found = registry.hooks(_PROGRAMS, "A", _TEXT, quick=False)
        names = _names(found)
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual(set(registry.FLOORS), set(names))
        for variant, family in registry.HOOKS.items():
            self.assertIn(f"tessera ddp-{variant}", names)
            peers = [c.name for c in found if c.family == family and family]
            self.assertEqual(peers, [f"pytorch ddp-{variant}", f"pytorch ddp-{variant}, mmap_max 0"] if family else [])
        self.assertFalse(registry.has_usual_curve("tessera ddp-noop"))
        self.assertTrue(registry.has_usual_curve("pytorch ddp-bf16"))

    def test_families_are_those_of_the_entries(self) -> None:
        found = registry.training(_PROGRAMS, "A", _TEXT, quick=False)
        self.assertEqual(registry.families(), {c.name: c.family for c in found if c.family})


if __name__ == "__main__":
    unittest.main()
