"""The allowed distance of two trainings that add the same numbers in another order.

Distances are relative to the largest element of a tensor (tensors.distance) and counted in units of
roundoff, u = 2^-24 in fp32 and 2^-53 in fp64. Both have the same limit in units: rounding errors
shrink by 2^29 from fp32 to fp64, while a mistake does not shrink at all.

The limit for the residual model:

- A step rounds a parameter three times (decay, change, sum), in both programs: 12 * 3 * 2 = 72 u if
  all errors have the same sign, about sqrt(72) = 8 u otherwise.
- A gradient results from about 1100 additions: 13 + 3 * (37 + 37 + 51) + 37 + 37 forward, as many
  backward, 64 rows. 12 steps with a learning rate of 0.003 pass on 0.036 of its relative error, to
  tensors whose largest element is above 0.13: 0.28 * 1100 = 300 u, or 0.28 * sqrt(1100) = 9 u.

Together 370 u at worst, and about 17 u if errors are independent, for sums whose terms do not
cancel. The limit of 64 u lies between: 3.8e-6 in fp32, 7.1e-15 in fp64. Measured are 4 to 6 u; the
controls give 1e6 and more.
"""

from __future__ import annotations

from . import tensors
from .run import Run

_UNITS_OF_ROUNDOFF = {"float32": 2.0 ** -24, "float64": 2.0 ** -53}

UNITS = 64


def units_apart(run: Run, expected: Run, task: str) -> float:
    """The distance of parameters or losses, in units of roundoff of the task's dtype."""
    got, wanted = run.end(task), expected.end(task)
    losses, wanted_losses = run.losses(task), expected.losses(task)
    if len(losses) != len(wanted_losses):
        return float("inf")
    of_losses = tensors.distance_of(losses, wanted_losses)
    farthest = max(tensors.distance(got, wanted), of_losses)
    return farthest / _UNITS_OF_ROUNDOFF[wanted.entries[0].dtype]


def text(units: float) -> str:
    return f"{units:.3g} u apart"


LIMIT = f"at most {UNITS} u apart"
