"""Casts of weights that autocast keeps, for as long as torch keeps its own.

Input: a float32 leaf that requires a gradient, and the dtype of autocast. Output: the leaf in that
dtype, cast once. Invariant: a cast is freed at the moment at which torch frees those of real
tensors.

Torch has one cache for all threads (``cached_cast`` in aten/src/ATen/autocast_mode.cpp). A cast
stays in it, even if the weight is written or freed, until some thread leaves its outermost autocast
context, which C++ sees and Python does not. So a real tensor of one element, the sentinel, is put
into torch's cache: when the sentinel's cast is freed, the casts of fakes are freed too.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakIdRef

from torchfake._core import modes
from torchfake._torch import autograd
from torchfake._torch.contexts import holding, shared

_Casts = dict[WeakIdRef, torch.Tensor]

_lock = shared(threading.Lock())
_kept: dict[str, Any] = {}
"""Under "casts", the casts; under "sentinel", a weak reference to the sentinel's cast's memory."""


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor` in `dtype`, or the result of an earlier call with this tensor: like torch, which
    ignores the dtype then. Gradients are recorded even in ``torch.no_grad()``.
    """
    casts: _Casts | None = _kept.get("casts")
    if casts is None:
        casts = _begin()
    key = WeakIdRef(tensor)
    found = casts.get(key)
    if found is None:
        with autograd.enable_grad():
            found = casts[key] = tensor.to(dtype)
    return found


def _begin() -> _Casts:
    """Begin to keep casts, until torch's cache is cleared."""
    with holding(_lock):
        casts: _Casts | None = _kept.get("casts")
        if casts is None:
            memory = _cached_memory()
            # the callback is implemented in C: it cannot be interrupted
            _kept["sentinel"] = weakref.ref(memory, partial(_kept.pop, "casts"))
            casts = _kept["casts"] = {}
    return casts


def _cached_memory() -> torch.UntypedStorage:
    """The memory of a cast that nothing but torch's cache refers to.

    It is made by a thread of its own, where no mode, no transform and no hook of the program is.
    """
    made: list[torch.UntypedStorage] = []

    def run() -> None:
        _set_dtype("cpu", torch.bfloat16)  # for this thread only
        _set_enabled("cpu", True)
        leaf = torch.ones(1, 1, device="cpu", dtype=torch.float32, requires_grad=True)
        product: Any = torch.mm(leaf, leaf)
        made.append(product.grad_fn._saved_self.untyped_storage())

    with modes.starting_plain_threads():
        thread = threading.Thread(target=run)
        thread.start()
    thread.join()
    return made[0]


_set_enabled = torch.set_autocast_enabled  # before a mode replaces it
_set_dtype = torch.set_autocast_dtype
