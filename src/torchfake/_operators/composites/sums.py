"""Sums of gradients, which lie otherwise if the engine of autograd adds them up.

Input: a call of ``add``, and its result on meta tensors. Output: that result, or one that lies as
the engine's. Invariant: nothing but strides is changed.

Where several gradients meet at one node, the engine adds in place to the gradient that came first,
if that is dense and nobody else holds it or its memory; of subclasses, and while any mode is on, it
makes a new sum (torch/csrc/autograd/input_buffer.cpp).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import torch

from torchfake._core.metadata import is_dense, operand_of, strides_of_result
from torchfake._torch import dispatcher

_ADD = torch.ops.aten.add.Tensor
_LISTS = frozenset({tuple, list})
_LISTS_AND_DICTS = _LISTS | {dict}


def sum_may_lie_otherwise(func: Any, args: Any) -> bool:
    """Whether a sum has other strides if the engine adds in place."""
    if func is not _ADD or not all(isinstance(arg, torch.Tensor) for arg in args):
        return False
    first, second = map(operand_of, args)
    if first.size != second.size or args[0].dtype != args[1].dtype:
        return False
    if 0 not in first.size and not is_dense(first):
        return False
    return strides_of_result(first.size, [first, second]) != first.stride


def as_engine_adds(func: Any, args: Any, made: Any) -> Any:
    """The sum of fakes on meta tensors: `made`, or one that lies as the first gradient."""
    if not sum_may_lie_otherwise(func, args) or not dispatcher.is_called_by_engine():
        return made
    if dispatcher.is_adding_itself() or _is_held_elsewhere(args):
        return made
    return torch.empty_strided(made.shape, args[0].stride(), dtype=made.dtype, device="meta")


def _is_held_elsewhere(args: Any) -> bool:
    """Whether anything but the call and the engine holds the first of `args` or its storage.

    References are counted, less those of torchfake's own functions, which are as many as there are
    found, whatever way has led here.
    """
    found = sys.getrefcount(args[0]), sys.getrefcount(args[0]._fake_storage)
    own = [id(each) for each in _held_by_own_frames(sys._getframe())]
    alone = (object(),)
    of_one = sys.getrefcount(alone[0])
    of_tensor = of_one + own.count(id(args[0]))  # C++ holds it, as the tuple holds the object
    of_storage = of_one + own.count(id(args[0]._fake_storage))  # and the fake its storage
    is_held = found[0] > of_tensor or found[1] > of_storage
    return is_held or dispatcher.is_held_by_others(args[0])


def _held_by_own_frames(frame: Any) -> Iterator[Any]:
    """What local variables of torchfake's functions that have led to `frame` refer to, and what the
    containers among that hold: an object is given once for each reference to it.
    """
    seen: set[int] = set()
    while frame is not None and dispatcher.is_own_frame(frame):
        for value in frame.f_locals.values():
            yield value
            yield from _held_by(value, seen)
        frame = frame.f_back


def _held_by(value: Any, seen: set[int], kinds: frozenset[type] = _LISTS) -> Iterator[Any]:
    """What a list holds, or an object of torchfake that keeps the arguments of one call, and what
    such lists hold that are in it; nothing if `value` is in `seen`.
    """
    if "tensors" in getattr(type(value), "__slots__", ()):  # `Call`, for instance
        kinds = _LISTS_AND_DICTS
    elif type(value) not in kinds:
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    for each in gc.get_referents(value):
        yield each
        yield from _held_by(each, seen, kinds)
