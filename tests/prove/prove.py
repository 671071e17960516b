"""Checks the README's claims from outside: runs programs, compares the files that they write.

    python3 tests/prove/prove.py <folder of the programs> [--quick] [--keep FOLDER]

--quick: a few configurations on two ranks. --keep: keeps the results in this folder. Needs only
Python 3.9 or newer. The exit code is 0 if every claim holds.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from claims import (
    configuration, controls, plain_libtorch, promises, pytorch, same_bits, sharded_runs,
)
from claims.run import Programs
from claims.table import Table


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the README's claims from outside.")
    parser.add_argument("programs", type=Path, help="the folder they were built into")
    parser.add_argument("--quick", action="store_true", help="few configurations, two ranks")
    parser.add_argument("--keep", type=Path, help="leave the results in this folder")
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if asked.keep is None:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prove-")))
        else:
            scratch = asked.keep
            scratch.mkdir(parents=True, exist_ok=True)
        programs = Programs(asked.programs.resolve(), scratch.resolve())
        if missing := programs.missing():
            print(f"prove: not in {asked.programs}: {', '.join(missing)}; run 'make prove'",
                  file=sys.stderr)
            return 2
        return _check(programs, asked.quick)


def _check(programs: Programs, quick: bool) -> int:
    began = time.monotonic()
    table = Table()
    plain = programs.plain()
    if plain.code != 0:
        print(f"prove: prove_reference failed: {plain.last_line()}", file=sys.stderr)
        return 1
    worlds = (2,) if quick else (1, 2, 3, 4)
    chosen = configuration.few_of if quick else configuration.all_of
    runs = sharded_runs.ShardedRuns(programs, worlds, chosen)
    for section in (
            lambda: same_bits.check(table, runs),
            lambda: plain_libtorch.check(table, plain, runs),
            lambda: pytorch.check(table, programs, plain, runs),
            lambda: promises.check(table, programs, runs, quick),
            lambda: controls.check(table, programs, runs, quick),
    ):
        try:
            section()
        except (OSError, ValueError) as error:  # a failed job left no results to compare
            table.row("all results are there", "files", str(error), False)
    print(f"\n{time.monotonic() - began:.0f} s")
    return table.end()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("prove: stopped", file=sys.stderr)
        sys.exit(130)
