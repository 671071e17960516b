"""The machine, software and time of a run."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import re
import subprocess
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Machine:
    """Facts for the header of the results, without names of hosts and users."""

    date: str
    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    huge_pages: str
    compiler: str
    libtorch: str
    peers_torch: str
    commit: str

    @property
    def folder_name(self) -> str:
        """"2026-11-21-2-core-amd-epyc"."""
        words = re.sub(r"\(.*?\)|@.*|\bCPU\b|\bProcessor\b|\d+-Core", " ", self.cpu)
        cpu = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "unknown"
        return f"{self.date[:10]}-{self.cores}-core-{cpu}"


def look(root: Path, build: Path, python: str | None) -> Machine:
    """Collects the facts from this machine, the build folder, the peers' Python and git."""
    return Machine(
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        cpu=_field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30,
        kernel=platform.release().split("-")[0],
        huge_pages=_chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        compiler=_compiler(build),
        libtorch=_libtorch(build),
        peers_torch=_output([python, "-c", "import torch; print(torch.__version__)"])
        if python
        else "none",
        commit=_commit(root),
    )


def _output(command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _field(path: Path, name: str) -> str | None:
    try:
        for line in path.read_text().splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip() == name:
                return value.strip()
    except OSError:
        pass
    return None


def _chosen(path: Path) -> str:
    try:
        found = re.search(r"\[(\w+)\]", path.read_text())
    except OSError:
        found = None
    return found.group(1) if found else "unknown"


def _cache(build: Path, name: str) -> str | None:
    try:
        found = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    except OSError:
        return None
    return found.group(1) if found else None


def _compiler(build: Path) -> str:
    path = _cache(build, "CMAKE_CXX_COMPILER")
    return _output([path, "--version"]).splitlines()[0] if path else "unknown"


def _libtorch(build: Path) -> str:
    folder = Path(_cache(build, "TESSERA_TORCH") or "/nonexistent") / "include" / "torch"
    for header in ("headeronly/version.h", "csrc/api/include/torch/version.h"):  # newer, older
        try:
            text = (folder / header).read_text()
        except OSError:
            continue
        parts = re.findall(r"^#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M)
        if len(parts) == 3:
            return ".".join(parts)
    return "unknown"


def _commit(root: Path) -> str:
    commit = _output(["git", "rev-parse", "--short", "HEAD"], root)
    if commit == "unknown":
        return commit
    changed = _output(["git", "status", "--porcelain", "--untracked-files=no"], root)
    return f"{commit} with local changes" if changed else commit
