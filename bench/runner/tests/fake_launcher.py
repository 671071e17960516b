"""Starts ranks like a launcher: `fake_launcher.py ... --nproc-per-node N ... program arguments`."""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    words = sys.argv[1:]
    count = int(words[words.index("--nproc-per-node") + 1])
    program = next(i for i, word in enumerate(words) if word.endswith(("train.py", "macro_train")))
    command = words[program:]
    if command[0].endswith(".py"):
        command = [sys.executable, *command]
    environments = [os.environ | {"RANK": str(rank)} for rank in range(count)]
    ranks = [subprocess.Popen(command, env=environment) for environment in environments]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
