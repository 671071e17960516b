"""The batches, equal to those of the C++ entry: they depend only on step and rank."""

from __future__ import annotations

from typing import Protocol

import numpy
import torch
from torch import Tensor

from entry import Misuse, Ranks
from model import GptSizes, gpt_sizes

_SEQUENCE_STRIDE = 7919  # a prime: sequences start everywhere in the text
_MLP_BATCH = 8
_MLP_WIDTH = 64


class Batches(Protocol):
    """Input and target of any step of this rank."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of `step`, counted from 0."""
        ...


class TextBatches:
    """Windows of a text; a token is a pair of adjacent bytes, folded into the vocabulary."""

    def __init__(self, path: str, sizes: GptSizes, ranks: Ranks) -> None:
        try:
            text = torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint8)).to(torch.int64)
        except OSError as error:
            raise Misuse(
                f"--text: cannot read {path}: {error.strerror}; give a text file"
            ) from error
        self._starts = text.numel() - sizes.context - 2
        if self._starts <= 0:
            raise Misuse(
                f"--text: got {text.numel()} bytes in {path}, expected at least {sizes.context + 3}"
            )
        self._tokens = (text[:-1] * 256 + text[1:]) % sizes.vocabulary
        self._sizes = sizes
        self._ranks = ranks

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Two tensors [batch, context] of int64: tokens, and the token after each."""
        first = (step * self._ranks.world + self._ranks.rank) * self._sizes.batch
        starts = [(first + i) * _SEQUENCE_STRIDE % self._starts for i in range(self._sizes.batch)]
        windows = torch.stack([self._tokens[s : s + self._sizes.context + 1] for s in starts])
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


class RandomBatches:
    """Normally distributed noise for the MLP."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Two tensors [8, 64] of float."""
        seed = 1000 + step * self._ranks.world + self._ranks.rank
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(_MLP_BATCH, _MLP_WIDTH, generator=generator)
        return x, torch.randn(_MLP_BATCH, _MLP_WIDTH, generator=generator)


def batches(model: str, path: str | None, ranks: Ranks) -> Batches:
    """The batches for this model; reads the whole text."""
    if model == "MLP":
        return RandomBatches(ranks)
    if path is None:
        raise Misuse(f"--text: got none, expected a text file for model {model}")
    return TextBatches(path, gpt_sizes(model), ranks)
