"""Starts a command once per rank, like mpirun: fake_mpirun.py N command...; ends like the first rank that
fails."""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    world = int(sys.argv[1])
    ranks = []
    for rank in range(world):
        numbers = {"RANK": str(rank), "WORLD_SIZE": str(world), "OMPI_COMM_WORLD_RANK": str(rank)}
        ranks.append(subprocess.Popen(sys.argv[2:], env={**os.environ, **numbers}))
    for _ in ranks:
        pid, status = os.wait()
        if code := os.waitstatus_to_exitcode(status):
            for rank in ranks:
                if rank.pid != pid:
                    rank.kill()
            return abs(code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
