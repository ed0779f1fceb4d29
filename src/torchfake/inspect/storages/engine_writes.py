"""Writes of the autograd engine, in place for plain tensors and to new memory for subclasses.

Input: an operator that was run in a backward pass. Output: whether its result takes over the memory
of its first argument in eager mode. Invariant: only memory that is freed before the next operator
runs is taken over, so nobody but the engine has held it.

The engine adds to a gradient that it alone holds (torch/csrc/autograd/input_buffer.cpp), and
formulas of gradients write into zeros that they have just made (those of ``gather``, indexing,
``max``, ``sort``: torch/csrc/autograd/FunctionsManual.cpp), unless ``isTensorSubclassLike`` is true
of a tensor, as it is of fakes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torchfake.inspect.storages.lifetimes import Lifetime
from torchfake.observe import Allocation, FakeTensor, is_dense, metadata_of

_ADD = torch.ops.aten.add.Tensor
_ZEROS = frozenset({
    torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default,
    torch.ops.aten.new_zeros.default,
})  # fmt: skip


class EngineWrite(NamedTuple):
    """A result, and the lifetime that it continues if the first argument is freed at once."""

    continued: Lifetime
    result: Allocation


def engine_write(
    func: Any, args: Any, old: Allocation | None, new: Allocation | None, node: int | None
) -> EngineWrite | None:
    """The write in place that eager mode does instead of this call; None if it does none.

    Args:
        func: an operator that the engine has called.
        args: its arguments.
        old: the memory of the first argument.
        new: the memory of the result.
        node: the number of the node of the graph that is running.
    """
    if old is None or new is None or old is new or new.op is not func:
        return None
    life: Lifetime = old.note
    if (life.num_bytes, life.device) != (new.num_bytes, new.device):
        return None
    if func is _ADD:
        is_written = life.node != node and _may_be_added_to(args)  # a node's own sum is new
    else:
        is_written = life.node == node and life.op in _ZEROS
    return EngineWrite(life, new) if is_written else None


def _may_be_added_to(args: Any) -> bool:
    """Whether the engine adds to the first of two gradients in place, if nobody else holds it."""
    first, second = args
    if not isinstance(second, FakeTensor) or first.shape != second.shape:
        return False
    return first.dtype == second.dtype and is_dense(metadata_of(first))
