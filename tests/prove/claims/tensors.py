"""Tensors in a file: <stem>.bin and <stem>.txt, as tests/prove/plain/tensor_file.h writes them."""

from __future__ import annotations

import array
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CODES = {"float32": "f", "float64": "d", "int64": "q"}


@dataclass(frozen=True)
class Entry:
    """One tensor: a line of the index."""

    name: str
    dtype: str
    offset: int
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        numel = 1
        for size in self.sizes:
            numel *= size
        return numel


class Tensors:
    """The contents of a file. `raw` is for comparing bits."""

    def __init__(self, folder: Path, name: str) -> None:
        self.index = (folder / f"{name}.txt").read_text()
        self.raw = (folder / f"{name}.bin").read_bytes()
        self.entries = [_entry(line) for line in self.index.splitlines()]

    def values(self, entry: Entry) -> array.array:
        values = array.array(_CODES[entry.dtype])
        values.frombytes(self.raw[entry.offset:entry.offset + entry.numel * values.itemsize])
        if sys.byteorder == "big":
            values.byteswap()
        return values


def write(folder: Path, name: str,
          tensors: list[tuple[str, str, tuple[int, ...], list[float]]]) -> None:
    """`tensors`: (name, dtype, sizes, values) of each."""
    lines, parts, offset = [], [], 0
    for title, dtype, sizes, numbers in tensors:
        values = array.array(_CODES[dtype], numbers)
        if sys.byteorder == "big":
            values.byteswap()
        lines.append(" ".join([title, dtype, str(offset), *map(str, sizes)]) + "\n")
        parts.append(values.tobytes())
        offset += len(parts[-1])
    (folder / f"{name}.txt").write_text("".join(lines))
    (folder / f"{name}.bin").write_bytes(b"".join(parts))


def same_bits(a: Tensors, b: Tensors) -> bool:
    """Compares names, shapes, dtypes and every bit."""
    return a.index == b.index and a.raw == b.raw


def distance(a: Tensors, b: Tensors) -> float:
    """The largest difference of two elements, relative to the largest element of their tensor in `b`; the
    maximum over all tensors. Infinite if the files have different tensors or a NaN."""
    if a.index != b.index:
        return float("inf")
    return max(distance_of(a.values(entry), b.values(entry)) for entry in b.entries)


def distance_of(a: Sequence[float], b: Sequence[float]) -> float:
    """The same for two lists of numbers."""
    if any(x != x for x in a) or any(x != x for x in b):
        return float("inf")
    scale = max(map(abs, b))
    return max(abs(x - y) for x, y in zip(a, b)) / scale if scale else float(a != b)


def _entry(line: str) -> Entry:
    name, dtype, offset, *sizes = line.split()
    return Entry(name, dtype, int(offset), tuple(map(int, sizes)))
