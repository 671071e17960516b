"""README's figure and table, from one run."""

from __future__ import annotations

from collections.abc import Callable

from . import gallery, registry
from .chart import Dots, dots
from .failure import BenchFailure
from .findings import Findings
from .model import MODELS
from .raw_results import Origin
from .spread import Spread, ratios

_MODELS = ("A", "C")  # a small and a large one
_MOST_ROWS = 5
_MEMORY_PEERS = ("pytorch fsdp2", "pytorch fsdp2, mmap_threshold 1 MiB")

_MISSING = "not measured"

# A row of the table: its name, ours and PyTorch's; None if ours is missing.
_Cells = tuple[str, str, str]
_Row = Callable[[Findings], _Cells | None]


def figure(found: Findings, origin: Origin) -> str:
    """README's figure: for each shown entry and round, the step time over the floor's in that round."""
    groups = []
    for model in _MODELS:
        floor = found.floor(model, registry.FLOORS)
        if floor is None:
            continue
        below = found.rounds(model, floor)
        rows = []
        for name in _shown(found, model):
            values = ratios(found.rounds(model, name), below)
            if values:
                label = f"{Spread.of(values).median:.2f}"
                rows.append(Dots(name, values, gallery.colour(found, name), label))
        groups.append((f"Model {model}, {MODELS[model].size} parameters", rows))
    if not groups:
        raise BenchFailure(f"the run trained none of the models {', '.join(_MODELS)} without communication, "
                           "which README compares with")
    return dots(
        "Step time over training without communication",
        f"{registry.RANKS} ranks. {origin.cores} ({origin.cpu}). Commit {origin.commit}. "
        "A dot is a round, the tick the median.",
        groups, gallery.legend(gallery.LEGEND, groups),
        "step time / step time without communication, in the same round", mark=1.0)


def _shown(found: Findings, model: str) -> list[str]:
    """The names of the entries to show: ours without rarer settings, the default and the fastest of each
    family of peers, and the floors except the lowest."""
    lowest = found.floor(model, registry.FLOORS)
    best = {found.best_peer(model, family) for family in found.families.values()}
    usual = [name for name in found.training[model]
             if "," not in name and "in-backward" not in name and "-keep" not in name]
    return [name for name in found.training[model]
            if name != lowest and name in {*best, *usual, *registry.FLOORS}]


def section(found: Findings, origin: Origin, folder: str, picture: str) -> str:
    """README's text between its marks. `folder`, `picture`: paths in the tree."""
    rows = [cells for row in _ROWS if (cells := row(found))][:_MOST_ROWS]
    links = [f"[raw results]({folder}/results.jsonl)"]
    links += [f"[memory]({folder}/memory.svg)"] if found.memory else []
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"""{registry.RANKS} ranks of one thread on {origin.cores} ({origin.cpu}), fp32; LibTorch {origin.libtorch}, PyTorch {origin.pytorch} over Gloo;
commit {', '.join([origin.commit, *links])}.
All programs took turns in one run.

![Step time of Tessera and of PyTorch over training without communication, every round]({picture})

| step time / step time without communication | Tessera | PyTorch, fastest variant |
|---|---|---|
{table}"""


def _step(model: str, strategy: str, family: str, what: str) -> _Row:
    """Step time over the floor: ours, and the fastest variant of a family of peers."""

    def cells(found: Findings) -> _Cells | None:
        floor = found.floor(model, registry.FLOORS)
        ours = found.step_ratio(model, f"tessera {strategy}", floor)
        if ours is None:
            return None
        best = found.best_peer(model, family)
        peer = found.step_ratio(model, best, floor)
        theirs = f"{peer.text()}, {_short(best)}" if peer and best else _MISSING
        return f"{what}; {MODELS[model].size} parameters", ours.text(), theirs

    return cells


def _alone(found: Findings) -> _Cells | None:
    """Our and PyTorch's ranks without communication, over the lower of both."""
    floor = found.floor("A", registry.FLOORS)
    ours = found.step_ratio("A", registry.FLOORS[2], floor)
    if ours is None:
        return None
    best = found.floor("A", registry.FLOORS[:2])
    peer = found.step_ratio("A", best, floor)
    theirs = f"{peer.text()}, {_short(best)}" if peer and best else _MISSING
    return f"each rank alone; {MODELS['A'].size} parameters", ours.text(), theirs


def _memory(found: Findings) -> _Cells | None:
    """Peaks of the large model, FSDP2 with both settings of malloc."""
    of = found.memory.get("C", {})
    if "tessera zero3" not in of:
        return None
    theirs = [f"{of[name].peak_above_idle_mib:,.0f}, {_short(name)}"
              for name in _MEMORY_PEERS if name in of]
    return (f"peak MiB per rank over idle, `zero3`, FSDP2; {MODELS['C'].size} parameters",
            f"{of['tessera zero3'].peak_above_idle_mib:,.0f}", "; ".join(theirs) or _MISSING)


def _short(name: str) -> str:
    return name.removeprefix("pytorch ")


# The table has the first rows that a run provides.
_ROWS = (
    _step("A", "ddp", "DDP", "`ddp`, DDP"),
    _step("A", "zero3", "FSDP2", "`zero3` with one shared copy, FSDP2"),
    _step("A", "zero3-apart", "FSDP2", "`zero3` without a shared copy, FSDP2"),
    _step("C", "zero3-apart", "FSDP2", "`zero3` without a shared copy, FSDP2"),
    _memory,
    _step("C", "zero3", "FSDP2", "`zero3` with one shared copy, FSDP2"),
    _step("A", "zero2", "ZeRO", "`zero2`, ZeroRedundancyOptimizer"),
    _step("A", "zero1", "ZeRO", "`zero1`, ZeroRedundancyOptimizer"),
    _alone,
)
