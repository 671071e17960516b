"""Training entry: PyTorch's strategies, one process per rank, steered by stdin.

    train.py --model {A,S,B,C,MLP} --strategy NAME [--text FILE] [--steps N]

Command `steps N` trains N more steps and answers with their times, losses, processor time, page
faults and memory; `checkpoint WHAT DIRECTORY` measures torch.distributed.checkpoint; `quit` ends. With --steps it trains without being asked, answers once and ends.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Iterator

import data
import model as models
import torch
from entry import Misuse, Parser, commands, emit, joined_ranks, natural, private_kib, run
from strategies import NAMES, Wrapped, strategy


def _parse() -> argparse.Namespace:
    parser = Parser(
        __doc__.split("\n", maxsplit=1)[0],
        "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \\\n"
        "    python train.py --model MLP --strategy local --steps 3")
    parser.add_argument("--model", required=True, help=", ".join(models.MODELS) + ", deep-<layers>")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"),
                        help="default: %(default)s")
    parser.add_argument("--strategy", required=True, choices=NAMES)
    parser.add_argument("--text", help="file that the GPT models read; they need one")
    parser.add_argument("--steps", help="train this many steps without being asked (default: as commands say)")
    return parser.parse_args()


def _train_on_gpu(wrapped: Wrapped, batches: data.Batches, first: int, steps: int) -> None:
    """Like _train, but from an idle GPU to an idle GPU: all times are the block's mean."""
    model, optimizer = wrapped
    prepared = [[t.cuda() for t in batches.batch(step)] for step in range(first, first + steps)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    losses = []
    start = time.perf_counter_ns()
    for batch, target in prepared:
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    mean_ms = (time.perf_counter_ns() - start) / 1e6 / steps
    emit(
        "steps",
        ms=[mean_ms] * steps,
        loss=[loss.item() for loss in losses],
        device_bytes=torch.cuda.memory_allocated(),
        device_peak_bytes=torch.cuda.max_memory_allocated(),
    )


def _count_on_gpu(wrapped: Wrapped, batches: data.Batches, step: int) -> None:
    """Trains one step and answers with its kernels, copies and fills, as seen by CUPTI."""
    from torch.profiler import ProfilerActivity, profile

    model, optimizer = wrapped
    batch, target = (t.cuda() for t in batches.batch(step))
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        optimizer.zero_grad(set_to_none=True)
        model(batch, target).backward()
        optimizer.step()
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    copies = sum(name.startswith("Memcpy") for name in names)
    fills = sum(name.startswith("Memset") for name in names)
    emit("counts", kernels=len(names) - copies - fills, copies=copies, fills=fills)


def _train(wrapped: Wrapped, batches: data.Batches, first: int, steps: int) -> None:
    """Trains steps first, first + 1, ... and reports them. Batches are created off the clock."""
    model, optimizer = wrapped
    prepared = [batches.batch(step) for step in range(first, first + steps)]
    times_ns, losses = [], []
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cpu_ns = time.process_time_ns()
    for batch, target in prepared:
        start = time.perf_counter_ns()
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times_ns.append(time.perf_counter_ns() - start)
    cpu_ns = time.process_time_ns() - cpu_ns
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    emit(
        "steps",
        ms=[ns / 1e6 for ns in times_ns],
        loss=losses,
        cpu_ms=cpu_ns / 1e6,
        minor_faults=faults,
        private_kib=private_kib(),
    )


def _orders(asked: str | None) -> Iterator[int | tuple[str, str]]:
    """Yields what to do next: a number of steps to train; 0 to train one step and count the GPU's work; or what
    to measure of checkpoints, and the directory. If `asked` is given, yields this number of steps and ends;
    otherwise reads commands."""
    if asked is not None:
        yield natural(asked, "--steps")
        return
    for words in commands():
        if words == ["counts"]:
            yield 0
            continue
        if len(words) == 3 and words[0] == "checkpoint":
            yield words[1], words[2]
            continue
        if len(words) != 2 or words[0] != "steps":
            raise Misuse(f"command: got '{' '.join(words)}', expected 'steps N', 'counts', "
                         "'checkpoint WHAT DIRECTORY' or 'quit'")
        yield natural(words[1], "steps")


def main() -> None:
    """Wraps the model, then trains as the commands say."""
    arguments = _parse()
    wrap = strategy(arguments.strategy, arguments.device)
    on_gpu = arguments.device == "cuda"
    with joined_ranks(arguments.device) as ranks:
        emit("idle", private_kib=private_kib())
        batches = data.batches(arguments.model, arguments.text, ranks)
        model = models.build(arguments.model)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        wrapped = wrap(model)
        del model
        gc.collect()
        gc.freeze()  # the collector then skips the modules at every step
        emit("ready", parameters=parameters)
        done = 0
        for steps in _orders(arguments.steps):
            if isinstance(steps, tuple):
                import checkpoint_times  # takes half a second, so only if needed

                emit("checkpoint", **checkpoint_times.measure(wrapped, batches.batch(done), *steps))
                continue
            if steps == 0:
                _count_on_gpu(wrapped, batches, done)
                done += 1
                continue
            (_train_on_gpu if on_gpu else _train)(wrapped, batches, done, steps)
            done += steps


if __name__ == "__main__":
    run(main)
