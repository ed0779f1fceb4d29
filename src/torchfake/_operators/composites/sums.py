"""Sums of gradients, which lie otherwise if the engine of autograd adds them up.

Input: a call of ``add``, and its result on meta tensors. Output: that result, or one that lies as
the engine's. Invariant: nothing but strides is changed.

Where several gradients meet at one node, the engine adds in place to the gradient that came first,
if that is dense and nobody else holds it or its memory; of subclasses, and while any mode is on, it
makes a new sum (torch/csrc/autograd/input_buffer.cpp).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from torchfake._core.metadata import Operand, is_dense, strides_of_result
from torchfake._torch import dispatcher

_ADD = torch.ops.aten.add.Tensor


def sum_may_lie_otherwise(func: Any, args: Any) -> bool:
    """Whether a sum has other strides if the engine adds in place."""
    if func is not _ADD or not all(isinstance(arg, torch.Tensor) for arg in args):
        return False
    first, second = map(_operand, args)
    if first.size != second.size or args[0].dtype != args[1].dtype:
        return False
    if 0 not in first.size and not is_dense(first):
        return False
    return strides_of_result(first.size, [first, second]) != first.stride


def as_engine_adds(func: Any, args: Any, made: Any) -> Any:
    """The sum of fakes on meta tensors: `made`, or one that lies as the first gradient."""
    if not sum_may_lie_otherwise(func, args) or not dispatcher.is_called_by_engine():
        return made
    if dispatcher.is_adding_itself() or _is_held_elsewhere(args[0]):
        return made
    return torch.empty_strided(made.shape, args[0].stride(), dtype=made.dtype, device="meta")


def _operand(tensor: torch.Tensor) -> Operand:
    return Operand(tuple(tensor.shape), tensor.stride())


def _is_held_elsewhere(tensor: Any) -> bool:
    """Whether anything but the call and the engine holds a fake or its storage.

    References are counted: those of a call are as many as those of a stand-in that is held so.
    """
    storage = tensor._fake_storage
    found = sys.getrefcount(tensor), sys.getrefcount(storage)
    one = object()
    _args, _tensors, _by_meta = (one,), [one], (None, one)  # what a call holds: see `Call`
    of_tensor = sys.getrefcount(one) + 1  # C++'s
    del _tensors
    of_storage = sys.getrefcount(one)  # the fake's, and that of the table of storages
    for value in _locals_of_own_frames():
        of_tensor += value is tensor
        of_storage += value is storage
    is_held = found[0] > of_tensor or found[1] > of_storage
    return is_held or dispatcher.is_held_by_others(tensor)


def _locals_of_own_frames() -> Iterator[Any]:
    """The local variables of torchfake's functions that have led to this call."""
    frame: Any = sys._getframe(2)  # above the one that counts
    while frame is not None and dispatcher.is_own_frame(frame):
        yield from frame.f_locals.values()
        frame = frame.f_back
