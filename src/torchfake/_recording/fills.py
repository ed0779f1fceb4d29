"""Calls that fill a whole deferred tensor, recorded again without a dispatch.

Input: a call of a function of ``torch.nn.init`` on a deferred fake, and what a call like it was
seen to record. Output: the same operation, recorded for this tensor. Invariant: what is recorded is
what the call would record; only calls that record one operation are remembered, which overwrites
the storage with numbers and depends on nothing else. Called by: ``_patches/data/initializers``.

Such calls are most of what the construction of a model records: each weight, often twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torchfake._core import modes
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import Cell, Overwrite, Read, next_number, recording_lock
from torchfake._operators.operator_call import NON_TENSOR_TYPES
from torchfake._recording import generator_sync
from torchfake._recording.initializers import find_call_site
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
    """Before a call: what is compared with afterwards."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._version = tensor._version
        self._number = next_number()

    def fill(self) -> Fill | None:
        """What the call has recorded, if that is one operation which can be recorded again."""
        tensor, op = self._tensor, self._tensor._fake_storage.deferred.op
        num_recorded = next_number() - self._number - 1
        if op is None or op.number != self._number + 1 or num_recorded != 1:
            return None
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
        num_writes, draws = tensor._version - self._version, op.draw is not None
        num_bytes = target.contents.num_bytes
        return Fill(op.func, tuple(numbers), num_words, draws, num_bytes, num_writes)


def is_plain(deferred: DeferredState | None) -> bool:
    """Whether a storage is deferred, not yet real, and of the size that its operations know."""
    return deferred is not None and deferred.real is None and deferred._rare is None


def record_again(fill: Fill, tensor: Any) -> bool:
    """Record `fill` for `tensor`; or nothing has happened, and the result is False."""
    storage, record = tensor._fake_storage, tensor._fake_meta
    deferred = storage.deferred
    if not is_plain(deferred):
        return False
    func, numbers, num_words, draws, num_bytes, num_writes = fill
    cell = deferred.cell
    if cell.num_bytes != num_bytes or _is_inference(tensor):
        return False
    with recording_lock:
        location, initialiser, is_sharding = find_call_site()
        if initialiser is not None:
            return False
        modes.thread.initialiser_frame = None
        number, draw = next_number(), None
        if num_words is not None:  # it draws on the CPU
            draw = generator_sync.next_default_draw(num_words)
        settings = numerics.current()
        write: Any = _new(
            Overwrite, (func, numbers, record, location, is_sharding, number, settings, draw)
        )
        if draw is None and draws:
            write = write.as_op(cell)
            generator_sync.record_draws(write, None, record, num_words)
        deferred.op, storage.value = write, None
        autograd.count_writes(tensor, num_writes)
    return True
