"""``meta_init``: deferred initialization in which tensors report ``meta`` until materialized.

Input: code that builds a module. Output: deferred tensors, as of :mod:`torchfake.deferred`.
Invariant: a tensor that reports ``meta`` is materialized on the device it was requested on.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from torchfake._core import arguments, modes
from torchfake._core.metadata import DEFERRED_AS_META
from torchfake._materialize import pipeline
from torchfake._materialize.collect import Selection, collect
from torchfake._replay import replay
from torchfake._torch.contexts import holding
from torchfake.deferred import deferred_mode
from torchfake.errors import NotDeferredError

_T = TypeVar("_T", torch.Tensor, torch.nn.Module)


class meta_init(deferred_mode):
    """Context manager in which every tensor reports ``device="meta"``.

    This includes tensors created with an explicit device. Operations are recorded with the
    requested device, and :func:`materialize` creates the tensor there (on the CPU if the requested
    device is ``meta``). Once the mode has ended, a tensor that is moved to a device reports it.

    Source: the proposed ``torch.nn.utils.meta_init`` (2021), pytorch/pytorch#61011.

    >>> with meta_init():
    ...     layer = torch.nn.Linear(3, 4)
    >>> layer.weight.device
    device(type='meta')
    >>> materialize(layer).weight.device
    device(type='cpu')
    """

    _mark = DEFERRED_AS_META


def is_meta_init() -> bool:
    """Return whether the innermost mode of this thread is :class:`meta_init`."""
    state = modes.current()
    return state is not None and state.mark == DEFERRED_AS_META


def materialize(obj: _T, keep_cache: bool = False) -> _T:
    """Materialize a tensor, or all tensors of a module, in place, and return it.

    Args:
        obj: a tensor of any shape, or a module. Real tensors are not changed.
        keep_cache: keep intermediate results until :func:`clear_meta_init_cache` is called, so that
            other tensors computed from them need not compute them again.

    Raises:
        NotDeferredError: (a ValueError) if a fake was not recorded, or `obj` is of another type.

    >>> with meta_init():
    ...     t1 = torch.ones(3)
    ...     t2 = t1 + 2
    >>> materialize(t2, keep_cache=True), materialize(t1)
    (tensor([3., 3., 3.]), tensor([1., 1., 1.]))
    >>> clear_meta_init_cache()
    """
    if not isinstance(obj, (torch.Tensor, torch.nn.Module)):
        raise NotDeferredError(f"materialize takes a tensor or a module, not {type(obj).__name__}")
    arguments.check_flag(keep_cache, "keep_cache")
    with holding(pipeline.lock):
        if isinstance(obj, torch.nn.Module):
            selection = collect(obj)
        else:
            selection = Selection([("the tensor", obj)])
        pipeline.run(selection, pipeline.Request(keep=keep_cache))
    return obj


def clear_meta_init_cache() -> None:
    """Free the intermediate results kept by ``materialize(..., keep_cache=True)``."""
    replay.clear_cached_results()
