"""Checks that entries train the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .failure import BenchFailure

TOLERANCE = 1e-3
STEPS = 20


def check(
    curves: Mapping[str, Sequence[float]], what: str, tolerance: float = TOLERANCE
) -> str:
    """Checks that all curves agree with the first one over their common first steps.

    Returns a sentence for the report; throws BenchFailure naming the first that differs.
    """
    (reference, expected), *others = curves.items()
    fewest, worst = min(STEPS, len(expected)), 0.0
    for name, curve in others:
        steps = min(STEPS, len(expected), len(curve))
        fewest = min(fewest, steps)
        for step in range(steps):
            apart = abs(curve[step] - expected[step]) / max(abs(expected[step]), 1e-12)
            worst = max(worst, apart)
            if not apart <= tolerance:
                raise BenchFailure(
                    f"{what}: {name} trains something else than {reference}: loss of step {step} is "
                    f"{curve[step]:.6f}, expected {expected[step]:.6f} (relative {tolerance:g})"
                )
    return f"{what}: {len(curves)} curves agree over {fewest} steps, at most {worst:.1e} apart"
