"""A run that torchrun may start again: FSDP2, saved by torch.distributed.checkpoint.

    torchrun --nproc-per-node 2 --max-restarts 1 resume.py --model A --text FILE --checkpoint DIR

Goes on from the newest complete save in DIR. Prints a line after each step, like examples/gpt.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import checkpoint_times
import data
import model as models
import torch.distributed as dist
from entry import Parser, joined_ranks, natural, run
from strategies import strategy


def _parse() -> argparse.Namespace:
    parser = Parser(
        __doc__.split("\n", maxsplit=1)[0],
        "torchrun --standalone --nproc-per-node 2 --max-restarts 1 \\\n"
        "    resume.py --model A --text model.py --checkpoint /tmp/run --steps 100")
    parser.add_argument("--model", required=True, help=", ".join(models.GPT_SIZES))
    parser.add_argument("--text", required=True, help="file that the model reads")
    parser.add_argument("--checkpoint", required=True, type=Path, help="directory of the run")
    parser.add_argument("--save_every", default="5", help="steps between saves (default: %(default)s)")
    parser.add_argument("--steps", default="100", help="steps to make (default: %(default)s)")
    return parser.parse_args()


def _newest(folder: Path) -> int:
    """The newest step whose metadata, which is written last, is there; 0: none."""
    return max((int(metadata.parent.name) for metadata in folder.glob("*/.metadata")), default=0)


def main() -> None:
    """Trains from the newest save to the last step."""
    arguments = _parse()
    steps, every = natural(arguments.steps, "--steps"), natural(arguments.save_every, "--save_every")
    with joined_ranks() as ranks:
        batches = data.batches(arguments.model, arguments.text, ranks)
        model = models.build(arguments.model)
        if ranks.rank == 0:
            print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
        wrapped = strategy("fsdp2")(model)
        done = _newest(arguments.checkpoint)
        if done:
            checkpoint_times.load(wrapped, f"{arguments.checkpoint}/{done}")
            if ranks.rank == 0:
                print(f"goes on from step {done}", flush=True)
        for step in range(done + 1, steps + 1):
            wrapped.optimizer.zero_grad(set_to_none=True)
            loss = wrapped.model(*batches.batch(step - 1))
            loss.backward()
            wrapped.optimizer.step()
            mean = loss.detach() / ranks.world
            dist.all_reduce(mean)
            if ranks.rank == 0:
                print(f"step {step}/{steps}  loss {mean.item():.4f}", flush=True)
            if step % every == 0:
                checkpoint_times.save(wrapped, f"{arguments.checkpoint}/{step}")


if __name__ == "__main__":
    run(main)
