"""The deferred tensors of this rank: plain ones, shards of DTensors, and those in other wrappers.

Input: tensors by name. Output: the deferred fakes among or inside them, and the wrappers of such
fakes. Invariant: a fake that was not recorded is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import subclass
from torchfake._torch.distributed import dtensors
from torchfake.errors import NotDeferredError

NamedTensors = list[tuple[str, torch.Tensor]]


class LocalTensors(NamedTuple):
    """The deferred tensors of this rank, by name."""

    fakes: list[tuple[str, FakeTensor]]  # all deferred fakes, those inside wrappers included
    shards: NamedTensors  # the DTensors whose shard is deferred
    wrapped: NamedTensors  # other wrappers of deferred tensors


def check_recorded(name: str, tensor: torch.Tensor) -> None:
    """Refuse a fake that has no record, and a plain meta tensor, by name."""
    if not isinstance(tensor, FakeTensor):
        if tensor.is_meta:
            raise NotDeferredError(
                f"{name} is a plain meta tensor, whose values were never recorded: it was made "
                'under torch.device("meta"), by init_empty_weights() or .to("meta"). Build the '
                "module with torchfake.deferred_init() instead, or give it memory by "
                "module.to_empty(device=...) and initialize or load it"
            )
    elif tensor._fake_storage.deferred is None:
        raise NotDeferredError(
            f"{name} is fake and was not recorded: it was made in fake_mode(), or computed from a "
            "fake that was. Make it inside deferred_init() or deferred_mode()"
        )


def is_or_holds_deferred(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is deferred, or a wrapper of one that is."""
    if is_deferred_fake(tensor):
        return True
    return any(is_or_holds_deferred(inner) for inner in subclass.inner_tensors(tensor))


def local_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> LocalTensors:
    """Collect the deferred tensors of this rank: plain ones, shards of DTensors, and the tensors
    inside other wrappers and inside the wrappers' gradients.

    Raises:
        NotDeferredError: for a fake that was not recorded.
    """
    found = LocalTensors([], [], [])
    for name, tensor in named:
        if isinstance(tensor, FakeTensor):
            check_recorded(name, tensor)
            found.fakes.append((name, tensor))
        elif type(tensor) not in _REAL_TYPES:
            _add_wrapper(found, name, tensor)
        else:
            check_recorded(name, tensor)
    return found


_REAL_TYPES = (torch.Tensor, torch.nn.Parameter)


def _add_wrapper(found: LocalTensors, name: str, tensor: torch.Tensor) -> None:
    is_dtensor = dtensors.is_dtensor(tensor)
    local = dtensors.shard_of(tensor) if is_dtensor else tensor
    check_recorded(name, local)
    if isinstance(local, FakeTensor):
        found.fakes.append((name, local))
        found.shards.append((name, tensor))
        return
    if not is_or_holds_deferred(local):
        return
    for inner, leaf in subclass.named_leaves(name, local):
        if isinstance(leaf, FakeTensor):  # other leaves were real when they were wrapped
            check_recorded(inner, leaf)
            found.fakes.append((inner, leaf))
    if local.grad is not None:
        found.fakes.extend(local_tensors([(f"{name}.grad", local.grad)]).fakes)
    if not is_dtensor:
        found.wrapped.append((name, tensor))


def deferred_shards(named: Iterable[tuple[str, torch.Tensor]]) -> NamedTensors:
    """The DTensors among `named` whose shard on this rank is deferred."""
    return [
        (name, tensor)
        for name, tensor in named
        if dtensors.is_dtensor(tensor) and is_deferred_fake(dtensors.shard_of(tensor))
    ]
