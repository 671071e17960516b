"""The models, equal to those of the C++ entry, with the same initial parameters bit for bit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

_INITIAL_DEVIATION = 0.02
_MLP_WIDTH = 64
_MLP_LAYERS = 100
_MLP_LAYERS_PER_UNIT = 10  # a sharding unit per Linear(64, 64) would be unfair


@dataclass(frozen=True)
class GptSizes:
    """A GPT and the size of its text in one step of one rank."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    batch: int  # sequences per rank


GPT_SIZES = {
    "A": GptSizes(layers=8, width=256, heads=4, context=128, vocabulary=256, batch=4),
    "S": GptSizes(layers=8, width=256, heads=4, context=64, vocabulary=256, batch=1),
    "B": GptSizes(layers=8, width=512, heads=8, context=128, vocabulary=256, batch=8),
    "C": GptSizes(layers=12, width=768, heads=12, context=128, vocabulary=8192, batch=2),
}
_GPT2 = GptSizes(layers=12, width=768, heads=12, context=1024, vocabulary=50257, batch=1)
GPT_SIZES |= {"gpt2-1k": _GPT2, "gpt2-16k": replace(_GPT2, batch=16)}
MODELS = (*GPT_SIZES, "MLP")


def gpt_sizes(name: str) -> GptSizes:
    """The sizes of one of GPT_SIZES or of deep-<layers>."""
    if name.startswith("deep-"):
        return replace(_GPT2, layers=int(name[5:]), width=2048, heads=16)
    return GPT_SIZES[name]


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, sizes: GptSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.attention_out = nn.Linear(sizes.width, sizes.width)
        self.forward_norm = nn.LayerNorm(sizes.width)
        self.widen = nn.Linear(sizes.width, 4 * sizes.width)
        self.forward_out = nn.Linear(4 * sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attention(self.attention_norm(x))
        return x + self.forward_out(functional.gelu(self.widen(self.forward_norm(x))))

    def _attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))


class Gpt(nn.Module):
    """The GPT of examples/gpt: tied embedding, pre-norm blocks, the same initial values.

    The loss is computed inside `forward`, so that wrappers see all of it.
    """

    def __init__(self, sizes: GptSizes) -> None:
        super().__init__()
        self.bytes = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self._initialise(sizes.layers)

    def forward(self, text: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy, a scalar, of predicting `target` from `text`, [batch, context]."""
        x = self.bytes(text) + self.positions.weight.narrow(0, 0, text.shape[1])
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.bytes.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())

    def units(self) -> list[nn.Module]:
        """The modules that strategies with sharded parameters gather and free one at a time."""
        return list(self.blocks)

    @torch.no_grad()
    def _initialise(self, layers: int) -> None:
        out_deviation = _INITIAL_DEVIATION / math.sqrt(2.0 * layers)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                continue  # already ones and zeros
            if name.endswith(".bias"):
                parameter.zero_()
            else:
                parameter.normal_(
                    0.0, out_deviation if name.endswith("_out.weight") else _INITIAL_DEVIATION
                )


class Mlp(nn.Module):
    """100 x Linear(64, 64), ReLU after each except the last: only latency and per-parameter cost."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(_MLP_LAYERS):
            layers += [nn.Linear(_MLP_WIDTH, _MLP_WIDTH), nn.ReLU()]
        layers[-1] = nn.Identity()
        step = 2 * _MLP_LAYERS_PER_UNIT
        self.stages = nn.Sequential(
            *(nn.Sequential(*layers[i : i + step]) for i in range(0, len(layers), step))
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean squared error, a scalar, of predicting `y` from `x`, both [batch, 64]."""
        return functional.mse_loss(self.stages(x), y)

    def units(self) -> list[nn.Module]:
        """The modules that strategies with sharded parameters gather and free one at a time."""
        return list(self.stages)


def build(name: str) -> Gpt | Mlp:
    """The model of this name, one of MODELS or deep-<layers>, from seed 1."""
    torch.manual_seed(1)
    return Mlp() if name == "MLP" else Gpt(gpt_sizes(name))
