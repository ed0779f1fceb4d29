"""The names of torch.distributed that are replaced while a rank is run.

Input: torch's functions and classes. Output: patches. Invariant: the originals are called for real
tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchfake.distributed.ddp.broadcasts import broadcast_coalesced
from torchfake.distributed.ddp.reducer import Logger, Reducer
from torchfake.errors import InputsError
from torchfake.observe import FakeTensor, Patch


def _of_fakes(tensors: Iterable[torch.Tensor]) -> bool:
    return any(isinstance(tensor, FakeTensor) for tensor in tensors)


def _reducer(original: Any) -> Any:
    def replacement(params: Any, *args: Any, **kwargs: Any) -> Any:
        params = list(params)
        kind = Reducer if _of_fakes(params) else original
        return kind(params, *args, **kwargs)

    return replacement


def _logger(original: Any) -> Any:
    def replacement(reducer: Any) -> Any:
        return Logger(reducer) if isinstance(reducer, Reducer) else original(reducer)

    return replacement


def _verify(original: Any) -> Any:
    """Skip the verification for fakes: ranks of a plan have parameters of equal shapes."""

    def replacement(group: Any, tensors: Any, logger: Any = None) -> Any:
        return None if _of_fakes(tensors) else original(group, tensors, logger)

    return replacement


def _broadcast(original: Any) -> Any:
    def replacement(group: Any, tensors: Any, buffer_size: int, src: int = 0) -> Any:
        send = broadcast_coalesced if _of_fakes(tensors) else original
        return send(group, tensors, buffer_size, src)

    return replacement


def _hook(original: Any) -> Any:
    def replacement(reducer: Any, *args: Any) -> Any:
        if isinstance(reducer, Reducer):
            raise InputsError(
                "hooks of communication of DistributedDataParallel cannot be planned: leave out "
                "register_comm_hook"
            )
        return original(reducer, *args)

    return replacement


def patches_of_ddp() -> list[Patch]:
    """The patches with which ``DistributedDataParallel`` runs on fakes."""
    dist = torch.distributed
    return [
        Patch(dist, "Reducer", _reducer),
        Patch(dist, "Logger", _logger),
        Patch(dist, "_verify_params_across_processes", _verify),
        Patch(dist, "_broadcast_coalesced", _broadcast),
        Patch(dist, "_register_comm_hook", _hook),
        Patch(dist, "_register_builtin_comm_hook", _hook),
    ]
