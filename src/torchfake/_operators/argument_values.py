"""The values of arguments that a check may read before the call runs.

Input: a tensor among the arguments of a call. Output: whether its value can be had at little cost,
and a real tensor with that value. Invariant: nothing is recorded; no value is computed that depends
on large tensors or on many operations.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._graph.operations import Cell, Op
from torchfake._operators.constant_propagation import argument_value, is_known
from torchfake._replay.first_use import value_of
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake

_MAX_OPS = 64
"""The largest number of recorded operations that are replayed for a check."""


def is_readable(tensor: Any) -> bool:
    """Whether `tensor` is small and has a value, known at once or after a short replay."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_sparse:
        return False
    if not is_deferred_fake(tensor):
        return is_known(tensor)
    deferred: Any = tensor._fake_storage.deferred  # type: ignore[attr-defined]
    if deferred.real is not None:
        return known_values.keeps_value(deferred.real.nbytes(), tensor.dtype)
    return known_values.keeps_value(deferred.cell.num_bytes, tensor.dtype) and _is_cheap(
        deferred.op
    )


def value_read(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor with the value of `tensor`, which is readable. Callers must not write it."""
    if isinstance(tensor, FakeTensor) and tensor._fake_storage.deferred is not None:
        deferred: Any = tensor._fake_storage.deferred
        return value_of(deferred, tensor._fake_meta)
    value: torch.Tensor = argument_value(tensor)
    return value


def _is_cheap(last: Op | None) -> bool:
    """Whether few operations on small tensors give the contents that `last` has written."""
    pending, found = [last], set()
    while pending:
        op = pending.pop()
        if op is None or op.number in found:
            continue
        found.add(op.number)
        if len(found) > _MAX_OPS or not _is_small(op):
            return False
        if op.cached is None:
            pending += [read.contents.op for read in op.reads()]
            pending.append(None if op.draw is None else op.draw.pending_draw)
    return True


def _is_small(op: Op) -> bool:
    if op.unreplayable_reason is not None:
        return False
    cells: list[Cell] = [*op.modified_cells(), *(read.contents.cell for read in op.reads())]
    return all(cell.num_bytes <= known_values.MAX_KNOWN_BYTES_OF_INTEGERS for cell in cells)
