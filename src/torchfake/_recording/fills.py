"""Calls that fill a whole deferred tensor, recorded again without a dispatch.

Input: a call of a function of ``torch.nn.init`` on a deferred fake, and what a call like it was
seen to record. Output: the same operation, recorded for this tensor. Invariant: what is recorded is
what the call would record; only calls that record one operation are remembered, which overwrites
the storage with numbers and depends on nothing else.

Such calls are most of what the construction of a model records: each weight, often twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torchfake._core import modes
from torchfake._core.source_location import RawLocation
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import Cell, Overwrite, Read, next_number, recording_lock
from torchfake._operators.operator_call import NON_TENSOR_TYPES
from torchfake._recording import generator_sync
from torchfake._recording.initializers import CallSite, find_call_site
from torchfake._torch import autograd, numerics

_new = tuple.__new__
_is_inference = torch.Tensor.is_inference


class Fill(NamedTuple):
    """What a call records, and what it does to its tensor besides."""

    func: Any
    numbers: tuple[Any, ...]  # its arguments, but for the tensor
    num_words: int | None  # random ones that it draws
    draws: bool
    num_bytes: int  # of the storage
    num_writes: int  # how far it moves the version counter


class Attempt:
    """Before a call that fills some tensors: what is compared with afterwards."""

    def __init__(self, *tensors: Any) -> None:
        self._tensors = tensors
        self._versions = [tensor._version for tensor in tensors]
        self._number = next_number()

    def fills(self) -> tuple[Fill, ...] | None:
        """What the call has recorded, if that is one operation for each tensor, in their order,
        which can be recorded again.
        """
        last = next_number() - 1
        found: list[Fill] = []
        for tensor, version in zip(self._tensors, self._versions, strict=True):
            op = tensor._fake_storage.deferred.op
            fill = None if op is None else _fill_of(op, tensor, tensor._version - version)
            if fill is None or op.number != self._number + 1 + len(found):
                return None
            found.append(fill)
        return tuple(found) if last == self._number + len(found) else None


def _fill_of(op: Any, tensor: Any, num_writes: int) -> Fill | None:
    target, *numbers = op.args
    if not isinstance(op.func, torch._ops.OpOverload) or op.kwargs or op.outputs:
        return None
    if type(target) is not Read or type(target.contents) is not Cell:
        return None  # it depends on what was there
    if target.record is not tensor._fake_meta or op.product_settings is not None:
        return None
    if not all(type(number) in NON_TENSOR_TYPES for number in numbers):
        return None
    num_words = None if op.draw is None else op.draw.num_words
    num_bytes = target.contents.num_bytes
    return Fill(op.func, tuple(numbers), num_words, op.draw is not None, num_bytes, num_writes)


def is_plain(deferred: DeferredState | None) -> bool:
    """Whether a storage is deferred, not yet real, and of the size that its operations know."""
    return deferred is not None and deferred.real is None and deferred._rare is None


def record_again(fill: Fill, tensor: Any) -> bool:
    """Record `fill` for `tensor`; or nothing has happened, and the result is False."""
    if not _fits(fill, tensor):
        return False
    location, initialiser, is_sharding = find_call_site(3)  # the caller is a function of ours
    if initialiser is not None:
        return False
    with recording_lock:
        modes.thread.initialiser_frame = None
        _add(fill, tensor, location, is_sharding, numerics.current())
    return True


def record_all_again(fills: tuple[Fill, ...], tensors: list[Any]) -> bool:
    """Record each fill for its tensor, in this order; or none of them, and the result is False."""
    with recording_lock:
        if len(fills) != len(tensors) or not all(map(_fits, fills, tensors)):
            return False
        location, initialiser, is_sharding = find_call_site()
        if initialiser is not None or len({t._fake_storage for t in tensors}) != len(tensors):
            return False
        _add_all(fills, tensors, location, is_sharding)
    return True


def record_of_new(fills: tuple[Fill, ...], tensors: list[Any], site: CallSite) -> None:
    """The same of tensors that have just been made, for each a fill of its size."""
    with recording_lock:
        _add_all(fills, tensors, site[0], site[2])


def _add_all(
    fills: tuple[Fill, ...], tensors: list[Any], location: RawLocation | None, is_sharding: bool
) -> None:
    modes.thread.initialiser_frame = None
    settings = numerics.current()
    for fill, tensor in zip(fills, tensors, strict=True):
        _add(fill, tensor, location, is_sharding, settings)


def _fits(fill: Fill, tensor: Any) -> bool:
    """Whether what `fill` does to a storage of its size can be recorded for that of `tensor`."""
    deferred = tensor._fake_storage.deferred
    if deferred is None or deferred.real is not None or deferred._rare is not None:
        return False
    return not (deferred.cell.num_bytes != fill.num_bytes or _is_inference(tensor))


def _add(
    fill: Fill,
    tensor: Any,
    location: RawLocation | None,
    is_sharding: bool,
    settings: numerics.Numerics,
) -> None:
    func, numbers, num_words, draws, _, num_writes = fill
    storage, record = tensor._fake_storage, tensor._fake_meta
    deferred = storage.deferred
    number, draw = next_number(), None
    if num_words is not None:  # it draws on the CPU
        draw = generator_sync.next_default_draw(num_words)
    write: Any = _new(
        Overwrite, (func, numbers, record, location, is_sharding, number, settings, draw)
    )
    if draw is None and draws:
        write = write.as_op(deferred.cell)
        generator_sync.record_draws(write, None, record, num_words)
    deferred._op, storage.value = write, None  # `op` is a property, which costs a call
    autograd.count_writes(tensor, num_writes)
