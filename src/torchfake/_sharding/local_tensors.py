"""What tensors are on this rank: plain ones themselves, a DTensor its shard, another wrapper what
is inside it.

Input: tensors by name. Output: those of them that are deferred fakes, or wrappers of such.
Invariant: a fake that was not recorded is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import distributed, subclass
from torchfake.errors import NotDeferredError

NamedTensors = list[tuple[str, torch.Tensor]]


class LocalTensors(NamedTuple):
    """The deferred tensors of this rank among others, by name."""

    fakes: list[tuple[str, FakeTensor]]  # all of them; of wrappers, what they consist of
    shards: NamedTensors  # the DTensors of deferred shards
    wrapped: NamedTensors  # the wrappers of deferred tensors that are no DTensors


def check_recorded(name: str, fake: FakeTensor) -> None:
    """Refuse a fake that has no record, by name."""
    if fake._fake_storage.deferred is None:
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
    """The deferred tensors of this rank: of DTensors, their shards; of other wrappers, what they
    consist of, and of their gradients.

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
    return found


_REAL_TYPES = (torch.Tensor, torch.nn.Parameter)


def _add_wrapper(found: LocalTensors, name: str, tensor: torch.Tensor) -> None:
    is_dtensor = distributed.is_dtensor(tensor)
    local = distributed.shard_of(tensor) if is_dtensor else tensor
    if isinstance(local, FakeTensor):
        check_recorded(name, local)
        found.fakes.append((name, local))
        found.shards.append((name, tensor))
        return
    if not is_or_holds_deferred(local):
        return
    for inner, leaf in subclass.named_leaves(name, local):
        if isinstance(leaf, FakeTensor):  # others were real when they were wrapped
            check_recorded(inner, leaf)
            found.fakes.append((inner, leaf))
    if local.grad is not None:
        found.fakes.extend(local_tensors([(f"{name}.grad", local.grad)]).fakes)
    if not is_dtensor:
        found.wrapped.append((name, tensor))


def deferred_shards(named: Iterable[tuple[str, torch.Tensor]]) -> NamedTensors:
    """Names and DTensors of deferred shards among these."""
    return [
        (name, tensor)
        for name, tensor in named
        if distributed.is_dtensor(tensor) and is_deferred_fake(distributed.shard_of(tensor))
    ]
