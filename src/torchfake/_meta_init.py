"""The older view of deferred initialisation: everything shows ``meta`` until it is materialized.

Enters: the user. Leaves: the same as :mod:`torchfake.deferred`, by other names. Invariant: a tensor
that shows ``meta`` knows which device it is on, and materializes there.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from torchfake import _materialize, _ranks, _replay, _shards, _state
from torchfake._members import (
    check_recorded,
    deferred_attributes,
    deferred_shards,
    deferred_tensors,
)
from torchfake._metadata import DEFERRED_AS_META
from torchfake._tensor import FakeTensor
from torchfake.deferred import deferred_mode
from torchfake.errors import NotDeferredError

_T = TypeVar("_T", torch.Tensor, torch.nn.Module)


class meta_init(deferred_mode):
    """A context in which every tensor shows ``device="meta"``, explicit devices notwithstanding.

    What it is made of is recorded, with the device that was asked for (the CPU, where that is
    ``meta``), and :func:`materialize` makes it real there.

    Source: the proposal of a ``torch.nn.utils.meta_init`` of 2021, pytorch/pytorch#61011.

    >>> with meta_init():
    ...     layer = torch.nn.Linear(3, 4)
    >>> layer.weight.device
    device(type='meta')
    >>> materialize(layer).weight.device
    device(type='cpu')
    """

    _mark = DEFERRED_AS_META


def is_meta_init() -> bool:
    """Whether the innermost mode of this thread is :class:`meta_init`, for authors of modules."""
    state = _state.current()
    return state is not None and state.mark == DEFERRED_AS_META


def materialize(obj: _T, keep_cache: bool = False) -> _T:
    """Make a tensor, or all tensors of a module, real in place, and return it.

    Args:
        obj: a tensor of any shape, or a module. What is real already stays as it is.
        keep_cache: keep what was computed on the way, until :func:`clear_meta_init_cache`: what is
            made of the same tensors later need not compute them again.

    Raises:
        NotDeferredError: (a ValueError) for a fake that was not recorded, or anything else.

    >>> with meta_init():
    ...     t1 = torch.ones(3)
    ...     t2 = t1 + 2
    >>> materialize(t2, keep_cache=True), materialize(t1)
    (tensor([3., 3., 3.]), tensor([1., 1., 1.]))
    >>> clear_meta_init_cache()
    """
    if not isinstance(obj, (torch.Tensor, torch.nn.Module)):
        raise NotDeferredError(f"materialize takes a tensor or a module, not {type(obj).__name__}")
    if isinstance(obj, torch.nn.Module):
        module: torch.nn.Module = obj
        shards = deferred_shards(module)
        _ranks.check_agreement(shards)
        with _shards.becoming_real(shards):
            found = [*deferred_tensors(module), *deferred_attributes(module)]
            _materialize.make_real(found, keep=keep_cache)
        _shards.tell_fsdp(module)
    elif isinstance(obj, FakeTensor):
        check_recorded("the tensor", obj)
        _materialize.make_real([("the tensor", obj)], keep=keep_cache)
    return obj


def clear_meta_init_cache() -> None:
    """Forget what ``materialize(..., keep_cache=True)`` has kept."""
    _replay.forget_kept()
