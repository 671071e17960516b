"""Repeats prove_reference's training in Python: the same initial weights and data, read from its
folder, with PyTorch's own modules and AdamW. Needs torch.

    python3 tests/prove/pytorch_reference.py <folder of prove_reference> <folder to write to>
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from claims import tensors  # noqa: E402

_DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}
_WIDTH, _HIDDEN, _BLOCKS, _INPUTS, _CLASSES = 37, 51, 3, 13, 7
_HEADS, _HINGE_INPUTS, _LABELS = 4, 24, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.up = nn.Linear(_WIDTH, _HIDDEN)
        self.down = nn.Linear(_HIDDEN, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh"))


class ResidualModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(_INPUTS, _WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(_BLOCKS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _CLASSES)

    def loss(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)), target, reduction="sum")


class HingeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(_HINGE_INPUTS, _LABELS) for _ in range(_HEADS))

    def loss(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = torch.cat([head(x) for head in self.heads], 1)
        return torch.relu(1 - target * scores).sum()


_USUAL = {"lr": 3e-3, "weight_decay": 0.05}
_EXACT = {"lr": 0.03, "weight_decay": 0.05, "betas": (0.5, 0.0), "eps": 1.0}
_TASKS = {
    "residual": (ResidualModel, _USUAL),
    "residual_double": (ResidualModel, _USUAL),
    "hinge": (HingeModel, _EXACT),
}


def read(folder: Path, name: str) -> dict[str, torch.Tensor]:
    file = tensors.Tensors(folder, name)
    return {
        entry.name: torch.tensor(file.values(entry).tolist(), dtype=_DTYPES[entry.dtype]).reshape(
            entry.sizes)
        for entry in file.entries
    }


def train(model: nn.Module, options: dict, data: dict[str, torch.Tensor]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    losses = []
    for step in range(len(data) // 2):
        x, target = data[f"input{step}"], data[f"target{step}"]
        optimizer.zero_grad()
        loss = model.loss(x, target) / len(x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def write(model: nn.Module, folder: Path, name: str) -> None:
    entries = []
    for title, parameter in model.named_parameters():
        dtype = str(parameter.dtype).removeprefix("torch.")
        values = parameter.detach().flatten().tolist()
        entries.append((title, dtype, tuple(parameter.shape), values))
    tensors.write(folder, name, entries)


def main(plain: Path, out: Path) -> None:
    torch.set_num_threads(1)
    for name, (make, options) in _TASKS.items():
        start = read(plain, f"{name}.start")
        model = make().to(next(iter(start.values())).dtype)
        model.load_state_dict(start)  # strict: the names must match
        losses = train(model, options, read(plain, f"{name}.data"))
        write(model, out, f"{name}.end")
        (out / f"{name}.steps").write_text("".join(loss.hex() + "\n" for loss in losses))
    print(torch.__version__.split("+")[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
