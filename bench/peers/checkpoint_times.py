"""The cost of torch.distributed.checkpoint, measured like CheckpointTimes measures Tessera's."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from entry import Misuse
from resident_peak import ResidentPeak
from strategies import Wrapped


def measure(
    wrapped: Wrapped, batch: tuple[torch.Tensor, torch.Tensor], what: str, directory: str
) -> dict[str, float]:
    """Returns the milliseconds that `what` takes on this rank, the bytes of state that this rank stores,
    and how much its memory grows meanwhile. Collective.

    save: dcp.save into a directory without a checkpoint; load: dcp.load of the result of save; stall:
    dcp.async_save until training may continue, the second time it is called.
    """
    if not wrapped.optimizer.state:
        _train(wrapped, batch)
    measured = {"save": _save, "load": _load, "stall": _stall}
    if what not in measured:
        raise Misuse(f"checkpoint: got '{what}', expected one of {', '.join(measured)}")
    size_bytes = float(sum(_bytes(value) for value in _leaves(_state(wrapped))))
    peak = ResidentPeak()
    dist.barrier()
    ms = measured[what](wrapped, batch, directory)
    return {"ms": ms, "bytes": size_bytes, "grown_kib": float(peak.growth_kib())}


def _train(wrapped: Wrapped, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    wrapped.optimizer.zero_grad(set_to_none=True)
    wrapped.model(*batch).backward()
    wrapped.optimizer.step()


def _state(wrapped: Wrapped) -> dict[str, Any]:
    model, optimizer = get_state_dict(wrapped.model, wrapped.optimizer)
    return {"model": model, "optimizer": optimizer}


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in _leaves(part)]
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def _bytes(value: Any) -> int:
    local = value.to_local() if hasattr(value, "to_local") else value
    return local.numel() * local.element_size() if isinstance(local, torch.Tensor) else 0


def _ms_since(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1e6


def save(wrapped: Wrapped, directory: str) -> None:
    """Saves model and optimizer. Collective."""
    dcp.save(_state(wrapped), checkpoint_id=directory)


def load(wrapped: Wrapped, directory: str) -> None:
    """Loads what `save` has saved. Collective."""
    state = _state(wrapped)
    dcp.load(state, checkpoint_id=directory)
    set_state_dict(wrapped.model, wrapped.optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])


def _save(wrapped: Wrapped, _batch: object, directory: str) -> float:
    began = time.perf_counter_ns()
    save(wrapped, directory)
    return _ms_since(began)


def _load(wrapped: Wrapped, _batch: object, directory: str) -> float:
    began = time.perf_counter_ns()
    load(wrapped, directory)
    return _ms_since(began)


def _stall(wrapped: Wrapped, batch: tuple[torch.Tensor, torch.Tensor], directory: str) -> float:
    ms = 0.0
    for number in range(2):
        _train(wrapped, batch)
        dist.barrier()
        began = time.perf_counter_ns()
        future = dcp.async_save(_state(wrapped), checkpoint_id=f"{directory}/{number}")
        ms = _ms_since(began)
        future.result()
    return ms
