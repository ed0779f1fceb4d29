"""What tensors are on this rank: plain ones themselves, a DTensor its shard, another wrapper what
is inside it.

Input: tensors by name. Output: those of them that are deferred fakes, or wrappers of such.
Invariant: a fake that was not recorded is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import distributed, subclass
from torchfake.errors import NotDeferredError


def check_recorded(name: str, fake: FakeTensor) -> None:
    """Refuse a fake that has no record, by name."""
    if not is_deferred_fake(fake):
        raise NotDeferredError(
            f"{name} is fake and was not recorded: it was made in fake_mode(), or computed from a "
            "fake that was. Make it inside deferred_init() or deferred_mode()"
        )


def is_or_holds_deferred(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is deferred, or a wrapper of one that is."""
    if is_deferred_fake(tensor):
        return True
    return any(is_or_holds_deferred(inner) for inner in subclass.inner_tensors(tensor))


def deferred_fakes(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, FakeTensor]]:
    """Names and deferred tensors among these; of DTensors, their shards; of other wrappers, what
    they consist of, and of their gradients.
    """
    for name, tensor in named:
        local = distributed.local_tensor_of(tensor)
        if isinstance(local, FakeTensor):
            check_recorded(name, local)
            yield name, local
        elif is_or_holds_deferred(local):
            yield from _deferred_leaves(name, local)
            if local.grad is not None:
                yield from deferred_fakes([(f"{name}.grad", local.grad)])


def _deferred_leaves(name: str, wrapper: torch.Tensor) -> Iterator[tuple[str, FakeTensor]]:
    for inner, leaf in subclass.named_leaves(name, wrapper):
        if isinstance(leaf, FakeTensor):  # others were real when they were wrapped
            check_recorded(inner, leaf)
            yield inner, leaf


def deferred_wrappers(named: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Names and wrappers of deferred tensors among these, other than DTensors."""
    return [
        (name, tensor)
        for name, tensor in named
        if not isinstance(tensor, FakeTensor)
        and not distributed.is_dtensor(tensor)
        and is_or_holds_deferred(tensor)
    ]


def deferred_shards(named: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Names and DTensors of deferred shards among these."""
    return [
        (name, tensor)
        for name, tensor in named
        if distributed.is_dtensor(tensor) and is_deferred_fake(distributed.shard_of(tensor))
    ]
