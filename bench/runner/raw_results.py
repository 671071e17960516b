"""The results of a run, read from its folder."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from pathlib import Path
from typing import Any

from . import registry
from .failure import BenchFailure
from .findings import Findings, Memory, Training
from .spread import Timing


@dataclasses.dataclass(frozen=True)
class Origin:
    """The machine and versions of a run, in the words of its results.md."""

    cpu: str
    cores: str
    commit: str
    libtorch: str
    pytorch: str


def origin(folder: Path) -> Origin:
    """Throws BenchFailure for a run that must not be quoted: a smoke test, or one without a commit."""
    page = _text(folder / "results.md")
    if "A smoke test" in page:
        raise BenchFailure(f"{folder}: got a smoke test (--quick), expected a whole run")
    rows = dict(re.findall(r"^\| (\w+(?: \w+)*) \| (.*) \|$", page, re.M))
    machine = re.fullmatch(r"(.*), (\d+ cores), .*", rows.get("machine", ""))
    built = re.fullmatch(r"(.*?), .*, LibTorch (\d\S*)", rows.get("Tessera", ""))
    peers = re.match(r"PyTorch (\d[\d.]*)", rows.get("peers", ""))
    if not machine or not built or not peers:
        raise BenchFailure(f"{folder / 'results.md'}: names no machine, commit or peers")
    if not re.fullmatch("[0-9a-f]{7,40}", built[1]):
        raise BenchFailure(f"{folder}: was measured at '{built[1]}', expected a commit without changes")
    return Origin(machine[1], machine[2], built[1], built[2], peers[1])


def read(folder: Path) -> Findings:
    """The findings of the train and memory suites. Throws BenchFailure if they cannot be read."""
    path = folder / "results.jsonl"
    found = Findings(families=registry.families())
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            _add(found, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise BenchFailure(f"{path}:{number}: not a result: {error!r}") from error
    return found


def _add(found: Findings, record: dict[str, Any]) -> None:
    # Up to 2026-11-22 entries were called contestants.
    name = record["entry"] if "entry" in record else record["contestant"]
    if record["suite"] == "train" and record["kept"]:
        training = found.training.setdefault(record["model"], {}).setdefault(name, Training())
        training.rounds[record["round"]] = Timing(record["median_ms"], record["min_ms"])
    elif record["suite"] == "memory":
        idle, peak, after = (statistics.fmean(record[key])
                             for key in ("idle_kib", "peak_kib", "after_kib"))
        found.memory.setdefault(record["model"], {})[name] = Memory(idle, peak, after)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchFailure(f"{path}: {error.strerror}") from error
