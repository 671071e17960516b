"""results.jsonl: one object per measured block, written during the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """Writes objects to a file, one per line, each in the file before `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Writes one line; floats have six significant digits."""
        self._file.write(json.dumps(_rounded(record)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return value
