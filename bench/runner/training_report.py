"""The report's section on training: step times and gains over peers."""

from __future__ import annotations

import statistics

from . import registry
from .findings import Findings, Training
from .markdown import table
from .model import MODELS
from .spread import Spread, medians

# The families with which our strategies are compared.
RIVALS = {
    "ddp": ("DDP",),
    "ddp-weights": ("DDP",),
    "ddp-noop": ("DDP noop",),
    "ddp-bf16": ("DDP bf16",),
    "ddp-powersgd": ("DDP PowerSGD",),
    "zero1": ("ZeRO",),
    "zero2": ("ZeRO",),
    "zero3": ("FSDP2", "FSDP1"),
    "zero1-apart": ("ZeRO",),
    "zero2-apart": ("ZeRO",),
    "zero3-apart": ("FSDP2", "FSDP1"),
    "zero3-keep": ("FSDP2", "FSDP1"),
    "zero2-in-backward": ("ZeRO",),
    "zero3-in-backward": ("FSDP2", "FSDP1"),
}


def cell(spread: Spread | None) -> str:
    """Median with range, or a dash."""
    return spread.text() if spread else "-"


def minima(spread: Spread | None) -> str:
    """The ratio of the minima, or a dash."""
    return f"{spread.of_minima:.2f}" if spread and spread.of_minima is not None else "-"


def summary(findings: Findings) -> str:
    """Ours against the fastest variant of each rival, and against its default."""
    rows = []
    for model, found in findings.training.items():
        for strategy, families in RIVALS.items():
            ours = f"tessera {strategy}"
            if ours not in found:
                continue
            for family in families:
                best = findings.best_peer(model, family)
                gained = findings.step_ratio(model, best, ours)
                if best and gained:
                    rows.append([f"{model}, {strategy}", best, cell(gained), minima(gained)])
    if not rows:
        return ""
    text = "Step time of the fastest variant of each peer over ours, in the same round:\n\n"
    head = ["model, strategy", "fastest variant", "times as fast [range]", "of minima"]
    return text + table(head, rows)


def models(findings: Findings, ranks: int) -> str:
    """One section per model."""
    return "\n".join(_model(findings, model, ranks) for model in findings.training)


def _model(findings: Findings, name: str, ranks: int) -> str:
    found = findings.training[name]
    if not found:
        return ""
    model = MODELS[name]
    floor = findings.floor(name, registry.FLOORS)
    parameters = next(iter(found.values())).parameters
    text = (
        f"### Model {name}\n\n{model.shape}; {parameters / 1e6:.2f} M parameters, {model.tokens} "
        f"tokens per rank and step, {ranks} ranks, fp32. Floor: {floor or 'not measured'}.\n\n"
    )
    rows = [_row(findings, name, entry, training, floor, ranks)
            for entry, training in found.items()]
    text += table(
        ["entry", "step, ms [range]", "over the floor [range]", "of minima", "tokens/s",
         "CPU ms per rank and step", "page faults per rank and step", "MiB per process"], rows)
    ours = [c for c in found if c.startswith("tessera ") and c not in registry.FLOORS]
    peers = [c for c in found if c in findings.families]
    if ours and peers:
        text += "\nStep time of each peer over ours, median [range]; ratio of minima:\n\n"
        rows = []
        for peer in peers:
            row = [peer]
            for entry in ours:
                gained = findings.step_ratio(name, peer, entry)
                row.append(f"{cell(gained)}; {minima(gained)}")
            rows.append(row)
        text += table(["peer", *ours], rows)
    return text


def _row(findings: Findings, model: str, name: str, training: Training, floor: str | None,
         ranks: int) -> list[str]:
    step_ms = medians(training.rounds)
    over = findings.step_ratio(model, name, floor)
    tokens = MODELS[model].tokens * ranks / (step_ms.median * 1e-3)
    return [
        name, step_ms.text(), cell(over), minima(over), f"{tokens:,.0f}",
        f"{statistics.median(training.cpu_ms):.2f}", f"{statistics.median(training.faults):,.1f}",
        f"{training.private_kib / 1024:,.0f}",
    ]
