"""Runs the programs and reads their results."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import tensors
from .configuration import Configuration

_SECONDS = 300  # far longer than any job; a hang is a failure


@dataclass(frozen=True)
class Run:
    """One finished program with its folder of results."""

    folder: Path
    code: int
    output: str

    def end(self, task: str) -> tensors.Tensors:
        """The parameters after training."""
        return tensors.Tensors(self.folder, f"{task}.end")

    def all_agree(self, task: str) -> bool:
        """Returns whether all ranks ended with the same bits."""
        others = self.folder.glob(f"{task}.end*.bin")
        return len({path.read_bytes() for path in others}) == 1

    def steps(self, task: str) -> str:
        """Losses, and norms of ranks: in hexadecimal, so equal text means equal bits."""
        return (self.folder / f"{task}.steps").read_text()

    def losses(self, task: str) -> list[float]:
        return [float.fromhex(line.split()[0]) for line in self.steps(task).splitlines()]

    def of_ranks(self, what: str) -> dict[int, str]:
        """The text that each rank wrote to rank<r>.<what>."""
        found = self.folder.glob(f"rank*.{what}")
        return {int(path.stem.removeprefix("rank")): path.read_text().strip() for path in found}

    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1] if lines else f"exit code {self.code}, no output"


class Programs:
    """The programs of the build, with one thread each, because the number of threads changes how kernels
    split sums."""

    def __init__(self, binaries: Path, scratch: Path) -> None:
        self._binaries = binaries
        self._scratch = scratch
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def missing(self) -> list[str]:
        wanted = ("prove_reference", "prove_training", "tessera-run")
        return [name for name in wanted if not os.access(self._binaries / name, os.X_OK)]

    def plain(self) -> Run:
        """Runs the program with LibTorch only."""
        folder = self._folder("plain")
        return self._run(folder, [str(self._binaries / "prove_reference"), str(folder)])

    def sharded(self, ranks: int, configuration: Configuration, *flags: str) -> Run:
        """Runs Tessera's program."""
        folder = self._folder(f"{ranks}-{configuration.label}")
        launch = [str(self._binaries / "tessera-run"), "--standalone", f"--nproc-per-node={ranks}",
                  "--grace-seconds=5", "--", str(self._binaries / "prove_training")]
        return self._run(folder, [*launch, f"--out={folder}", *configuration.flags, *flags])

    def other(self, command: list[str]) -> Run:
        """Runs any program whose last argument is a folder to write to."""
        folder = self._folder("other")
        return self._run(folder, [*command, str(folder)])

    def _folder(self, label: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=label.replace(" ", "_") + "-", dir=self._scratch))

    def _run(self, folder: Path, command: list[str]) -> Run:
        try:
            done = subprocess.run(command, env=self._environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=_SECONDS, check=False)
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as expired:
            text = expired.stdout or b""  # bytes, even with text=True
            output = text.decode(errors="replace") if isinstance(text, bytes) else text
            code, output = 124, f"{output}\nno end after {_SECONDS} s"
        (folder / "output").write_text(output)
        return Run(folder, code, output)
