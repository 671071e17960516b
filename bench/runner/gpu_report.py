"""The report's section on one GPU."""

from __future__ import annotations

from . import gpu_goal
from .findings import Findings
from .markdown import table
from .spread import Spread, medians, ratio

_FLOOR = "libtorch local"


def text(findings: Findings) -> str:
    """A section per model, and the goals."""
    if not findings.gpu:
        return ""
    parts = [
        f"{findings.gpu_name}. One rank, bf16 over fp32 masters. `libtorch local` is a plain module with "
        "LibTorch's fused AdamW (at::_fused_adamw_) on the masters. Tokens/s over blocks of steps from an "
        "idle GPU to an idle GPU, each block in a process of its own. Peak: of the caching allocator. Counts "
        "of one step: kernels / copies / fills as CUPTI saw them; zeros where it saw nothing (then count "
        "with `nsys profile --stats=true`).\n"
    ]
    for model, found in findings.gpu.items():
        floor = found[_FLOOR].rounds if _FLOOR in found else {}
        rows = []
        for name, one in found.items():
            seconds = Spread.of(one.tokens / (t.median * 1e-3) for t in one.rounds.values())
            over = ratio(floor, one.rounds)
            rows.append([
                name, medians(one.rounds).text(), seconds.text(0), over.text(3) if over else "-",
                f"{one.peak_bytes / 2**20:,.0f}",
                f"{one.held_bytes / 2**20:,.1f} / {one.formula_bytes / 2**20:,.1f}"
                if one.formula_bytes > 0 else "-",
                " / ".join(str(n) for n in one.counts) if one.counts else "-"])
        parts.append(f"### {model}\n\n" + table(
            ["entry", "step, ms [range]", "tokens/s [range]", "tokens/s over libtorch local [range]",
             "peak, MiB", "between steps, allocator / formula, MiB", "counts"], rows))
    parts.append("### Goals on a GPU\n\n" + table(["goal", "bound", "measured [range]", ""],
                                                 gpu_goal.rows(findings.gpu)))
    return "\n".join(parts)
