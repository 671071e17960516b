"""A job of two ranks under a launcher that starts them once more: `fake_job.py MODE`.

MODE: well; anew (it does not go on from what it has saved); once (the launcher ends with its rank); larger.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time


def _rank(mode: str, attempt: int) -> None:
    if os.environ["RANK"] == "0":
        print(f"{2 if mode == 'larger' else 1}.00 M parameters", flush=True)
        if attempt and mode != "anew":
            print("goes on from step 10", flush=True)
    time.sleep(0.1 * (1 + attempt))
    for step in itertools.count(10 * attempt + 1):
        if os.environ["RANK"] == "0":
            print(f"step   {step}/100", flush=True)
        time.sleep(0.01)


def _launch(mode: str) -> int:
    for attempt in range(1 if mode == "once" else 2):
        ranks = [subprocess.Popen([sys.executable, __file__, mode, str(attempt)], env=os.environ | {"RANK": str(rank)})
                 for rank in range(2)]
        while all(rank.poll() is None for rank in ranks):
            time.sleep(0.01)
        for rank in ranks:
            rank.kill()
            rank.wait()
    return 1


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _rank(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(_launch(sys.argv[1]))
