"""What torch.compile does around operators that take functions, for fakes: trees and transforms.

Input: ``cond``, ``while_loop`` and ``scan`` with the functions of the user; a transform of
``torch.func`` and an operator in it. Output: results in the structure that the functions give.
Invariant: torch's kernels get leaves alone; a transform that has no rule is refused by name.
Called by: ``kernels``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchfake.errors import UnsupportedOpError


class _Flat:
    """A function that gives leaves, and the structure that they had last."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.spec: Any = None

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        leaves, self.spec = pytree.tree_flatten(self.function(*args))
        return tuple(leaves)


def scan(kernel: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """The last carry and the stacked outputs, as `function` structures them."""
    flat = _Flat(function)
    leaves = kernel(flat, *args, **kwargs)
    if flat.spec.is_leaf():  # the caller would take its rows for the two
        raise RuntimeError("combine_fn of scan must return a carry and an output, not one value")
    return pytree.tree_unflatten(leaves, flat.spec)


def while_loop(kernel: Callable[..., Any], cond: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
    """The last result of `body`; where it never runs, it does once for its structure."""
    flat = _Flat(body)
    leaves = kernel(cond, flat, *args, **kwargs)
    if flat.spec is None:
        carried, additional = args[:2]
        flat(*carried, *additional)
    return pytree.tree_unflatten(leaves, flat.spec)


def cond(predicate: Any, true: Any, false: Any, operands: Any) -> Any:
    """The result of a branch."""
    return (true if predicate else false)(*operands)


def cond_in_vmap(is_batched: Callable[[Any], bool], predicate: Any, *args: Any) -> Any:
    """Both branches where each sample has its own predicate, as torch's rule has it."""
    if not is_batched(predicate):
        return cond(predicate, *args)
    true, false, operands = args
    first, spec = pytree.tree_flatten(true(*operands))
    second = pytree.tree_leaves(false(*operands))
    if len(first) != 1 or len(second) != 1:
        raise UnsupportedOpError(
            "vmap of torch.cond by a predicate of each sample needs branches that return one "
            f"tensor, as in eager: these return {len(first)} and {len(second)}"
        )
    return pytree.tree_unflatten([torch.where(predicate, first[0], second[0])], spec)


def refuse(op: Any, transform: str) -> Any:
    """Transforms that have no rule."""
    raise UnsupportedOpError(
        f"torch.ops.higher_order.{op.name()} has no rule for torch.func's {transform}: eager "
        "refuses it too. Call the function outside the transform, or write it with torch.where"
    )
