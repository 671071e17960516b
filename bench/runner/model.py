"""The models of the training suites, as far as the runner needs them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Model:
    """Sizes of one model, and of the blocks of steps that are timed. The entries build the model."""

    name: str
    size: str  # the number of parameters
    shape: str
    tokens: int  # per rank and step
    block_steps: int  # about 1 to 3 s
    warm_up_steps: int  # after each start
    settle_steps: int  # untimed, before each block, because the other entries have used the caches
    rank_mib: int  # a generous estimate of a rank's memory
    step_timeout_s: float


MODELS = {
    model.name: model
    for model in (
        Model("A", "6.4 M", "GPT 8 x 256, context 128, batch 4, vocabulary 256", 512, 6, 10, 1, 450, 10),
        Model("S", "6.4 M", "GPT 8 x 256, context 64, batch 1, vocabulary 256", 64, 30, 10, 2, 400, 10),
        Model("B", "25 M", "GPT 8 x 512, context 128, batch 8, vocabulary 256", 1024, 2, 3, 1, 1100, 60),
        Model("C", "91 M", "GPT 12 x 768, context 128, batch 2, vocabulary 8192", 256, 2, 2, 1, 2700, 90),
        Model("MLP", "0.4 M", "100 x Linear(64, 64) with ReLU, batch 8", 8, 100, 20, 5, 300, 5),
    )
}
