"""Tests how tests/durations.py reads the logs of ninja and ctest."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import durations  # noqa: E402

_NINJA = """# ninja log v5
0\t2000\t1\tcore/CMakeFiles/tessera_core.dir/a.cc.o\taa
0\t9000\t1\tcore/CMakeFiles/tessera_core.dir/b.cc.o\tbb
2000\t2500\t1\tlib/libtessera_core.a\tcc
10\t3010\t2\tcore/CMakeFiles/tessera_core.dir/b.cc.o\tbc
0\t4000\t1\tmodule/libone.so\tdd
0\t4000\t1\tmodule/libone.so.map\tdd
"""

_CTEST = """      Start  1: zero.1
 1/6 Test  #1: zero.1 ...........................   Passed   10.50 sec
 2/6 Test  #12: zero.2 ..........................***Failed    1.25 sec
 3/6 Test  #3: examples.launchers.srun ..........***Skipped   0.03 sec
 4/6 Test  #4: hosts.equal.mpich ................   Passed    2.00 sec
 5/6 Test  #5: a_name_that_leaves_no_room_for_dots_at_all   Passed    3.00 sec
 6/6 Test  #6: late .............................***Timeout  60.01 sec
100% tests passed, 0 tests failed out of 6
"""


class Durations(unittest.TestCase):
    def test_the_last_time_counts_and_commands_of_several_outputs_once(self):
        rows = {row.name: (row.seconds, row.parts) for row in durations.targets(_NINJA)}
        self.assertEqual(rows, {"tessera_core": (5.5, 3), "one": (4.0, 1)})
        self.assertEqual([row.name for row in durations.targets(_NINJA)], ["tessera_core", "one"])

    def test_suites_are_added_up_and_what_did_not_run_is_named(self):
        rows, not_run = durations.suites(_CTEST)
        self.assertEqual({row.name: (row.seconds, row.parts) for row in rows},
                         {"zero": (11.75, 2), "hosts": (2.0, 1), "late": (60.01, 1),
                          "a_name_that_leaves_no_room_for_dots_at_all": (3.0, 1)})
        self.assertEqual(not_run, ["examples.launchers.srun"])

    def test_a_table_ends_with_the_rest_and_the_sum(self):
        rows = [durations.Row("a", 5, 1), durations.Row("b", 3, 2), durations.Row("c", 1, 3)]
        self.assertEqual(durations.table("suite", "entries", rows, top=1).splitlines(),
                         ["| suite | seconds | entries |", "|---|--:|--:|", "| a | 5 | 1 |",
                          "| 2 others | 4 | 5 |", "| **all** | 9 | 6 |"])

    def test_other_files_are_refused(self):
        with self.assertRaisesRegex(ValueError, "no log of ninja"):
            durations.targets("something else\n")


if __name__ == "__main__":
    unittest.main()
