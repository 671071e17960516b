"""PyTorch's own ways to train on several ranks, each as fast as its options make it on a CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

# The optimizer's first use imports the compiler (through a decorator), a hundred MiB of code that
# training does not use. Importing it here counts it as memory of the idle process.
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from entry import Misuse
from model import Gpt, Mlp

_ADAMW: dict[str, Any] = {
    "lr": 3e-4,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.1,
    "fused": True,
}


class Wrapped(NamedTuple):
    """The training loop's needs: `optimizer` updates the parameters that `model` trains."""

    model: nn.Module
    optimizer: Optimizer


def _with_adamw(model: nn.Module) -> Wrapped:
    return Wrapped(model, AdamW(model.parameters(), **_ADAMW))


def _local(model: Gpt | Mlp) -> Wrapped:
    """No communication: the floor of the computation."""
    return _with_adamw(model)


def _ddp_default(model: Gpt | Mlp) -> Wrapped:
    """Like in the tutorials."""
    return _with_adamw(DistributedDataParallel(model))


def _bucket_view_ddp(model: nn.Module, bucket_cap_mb: float | None = None) -> DistributedDataParallel:
    return DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True,
                                   bucket_cap_mb=bucket_cap_mb)


def _ddp(model: Gpt | Mlp) -> Wrapped:
    """Gradients are views of the buckets, and the graph is declared to be the same each step."""
    return _with_adamw(_bucket_view_ddp(model))


_ONE_BUCKET_MB = 1 << 20


def _hooked_ddp(
    register: Callable[[DistributedDataParallel], None], bucket_cap_mb: float | None = None
) -> Callable[[Gpt | Mlp], Wrapped]:
    """Like ddp, with a communication hook."""

    def wrap(model: Gpt | Mlp) -> Wrapped:
        wrapped = _bucket_view_ddp(model, bucket_cap_mb)
        register(wrapped)
        return _with_adamw(wrapped)

    return wrap


def _noop(model: DistributedDataParallel) -> None:
    """Sends nothing."""
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    model.register_comm_hook(None, noop_hook)


def _bf16(model: DistributedDataParallel) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model.register_comm_hook(None, bf16_compress_hook)


def _powersgd(model: DistributedDataParallel) -> None:
    """Compresses from the third step on, the earliest that PyTorch allows. An epsilon is set, because
    otherwise zero gradients give NaN. All gradients are in one bucket, because the hook's callbacks wait for
    further collectives in Gloo's two threads, so two buckets would wait forever."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2,
                                           orthogonalization_epsilon=1e-8)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _zero(model: Gpt | Mlp) -> Wrapped:
    """Like ddp, with the optimizer's state sharded by parameter."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = _bucket_view_ddp(model)
    optimizer = ZeroRedundancyOptimizer(
        wrapped.parameters(), optimizer_class=AdamW, parameters_as_bucket_view=True, **_ADAMW
    )
    return Wrapped(wrapped, optimizer)


def _fsdp1(model: Gpt | Mlp) -> Wrapped:
    """FullyShardedDataParallel, FULL_SHARD."""
    units = {id(unit) for unit in model.units()}
    return _with_adamw(
        FullyShardedDataParallel(
            model,
            auto_wrap_policy=CustomPolicy(lambda module: id(module) in units),
            sharding_strategy=ShardingStrategy.FULL_SHARD,
            device_mesh=_mesh(),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    )


def _fsdp2(model: Gpt | Mlp) -> Wrapped:
    """fully_shard, parameters freed between forward and backward."""
    return _fully_shard(model, reshard_after_forward=True)


def _fsdp2_keep(model: Gpt | Mlp) -> Wrapped:
    """fully_shard, parameters kept from forward to backward."""
    return _fully_shard(model, reshard_after_forward=False)


def _fully_shard(model: Gpt | Mlp, reshard_after_forward: bool) -> Wrapped:
    mesh = _mesh()
    for unit in model.units():
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)  # the root is needed again immediately
    return _with_adamw(model)


def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


# --- On GPUs: bf16 over fp32 parameters, as users of PyTorch train ---


class _Autocast(nn.Module):
    """Computes in bf16 by autocast; parameters and optimizer stay fp32."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.inner(*batch)


def _gpu_local(model: Gpt | Mlp) -> Wrapped:
    return _with_adamw(_Autocast(model.cuda()))


def _gpu_ddp(model: Gpt | Mlp) -> Wrapped:
    return _with_adamw(_bucket_view_ddp(_Autocast(model.cuda())))


def _gpu_fsdp2(model: Gpt | Mlp) -> Wrapped:
    """fully_shard with bf16 parameters gathered from fp32 shards, gradients reduced in fp32."""
    model.cuda()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for unit in model.units():
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    return _with_adamw(model)


def _compiled(wrap: Callable[[Gpt | Mlp], Wrapped]) -> Callable[[Gpt | Mlp], Wrapped]:
    def compiled(model: Gpt | Mlp) -> Wrapped:
        wrapped = wrap(model)
        wrapped.model.compile()  # in place: the wrappers' hooks stay
        return wrapped

    return compiled


_GPU_STRATEGIES: dict[str, Callable[[Gpt | Mlp], Wrapped]] = {
    "local": _gpu_local,
    "local-compiled": _compiled(_gpu_local),
    "ddp": _gpu_ddp,
    "fsdp2": _gpu_fsdp2,
    "fsdp2-compiled": _compiled(_gpu_fsdp2),
}

_STRATEGIES: dict[str, Callable[[Gpt | Mlp], Wrapped]] = {
    "local": _local,
    "ddp": _ddp,
    "ddp-default": _ddp_default,
    "ddp-noop": _hooked_ddp(_noop),
    "ddp-bf16": _hooked_ddp(_bf16),
    "ddp-powersgd": _hooked_ddp(_powersgd, _ONE_BUCKET_MB),
    "zero": _zero,
    "fsdp1": _fsdp1,
    "fsdp2": _fsdp2,
    "fsdp2-keep": _fsdp2_keep,
}
NAMES = tuple(_STRATEGIES | _GPU_STRATEGIES)


def strategy(name: str, device: str = "cpu") -> Callable[[Gpt | Mlp], Wrapped]:
    """The wrapper of this name, one of NAMES.

    Imports only what this strategy needs, so that other strategies start sooner, and imports it before the
    memory of the idle process is measured.
    """
    if name == "zero":
        importlib.import_module("torch.distributed.optim")
    known = _GPU_STRATEGIES if device == "cuda" else _STRATEGIES
    if name not in known:
        raise Misuse(f"--strategy: got '{name}' on {device}, expected one of {', '.join(known)}")
    return known[name]
