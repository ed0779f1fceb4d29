"""Nested operands, checks of functions, and transforms, which eager leaves to torch.compile.

Input: ``cond``, ``while_loop`` and ``scan`` with the functions of the user; a transform of
``torch.func`` and an operator in it. Output: results in the structure that the functions give.
Invariant: torch's kernels get flat lists of tensors; a transform without a rule is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchfake._operators.higher_order.captured import captured_tensors, tensors_in
from torchfake._torch.compiler import higher_order
from torchfake.errors import UnsupportedOpError


class _Flat:
    """A function whose result is flattened; ``spec`` is the structure of its last result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.spec: Any = None

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        leaves, self.spec = pytree.tree_flatten(self.function(*args))
        return tuple(leaves)


class _Pure:
    """A function that, as in eager, is refused if it writes its inputs or returns one of them."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        self.captured = captured_tensors(function)

    def __call__(self, *args: Any) -> Any:
        tensors = [*tensors_in(args), *self.captured]
        versions = [_version_of(tensor) for tensor in tensors]
        result = self.function(*args)
        if [_version_of(tensor) for tensor in tensors] != versions:
            raise self._error("writes to its input in place: return a new tensor")
        seen = {id(storage) for storage in map(_storage_of, tensors) if storage is not None}
        for tensor in tensors_in(result):
            storage = _storage_of(tensor)
            if storage is not None and id(storage) in seen:
                raise self._error("returns its input, a view of it, or one tensor twice: clone it")
            seen.add(id(storage))
        return result

    def _error(self, what: str) -> Exception:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return higher_order.uncaptured_error(f"a function of torch's {self.name}, {name}, {what}")


def _version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _storage_of(tensor: torch.Tensor) -> Any:
    return getattr(tensor, "_fake_storage", None)


def _check_carried(name: str, before: Any, after: Any) -> None:
    """Refuse a carry whose structure, shapes, dtypes, strides or devices change in a step."""
    given, found = pytree.tree_leaves(before), pytree.tree_leaves(after)
    pairs = list(zip(given, found, strict=False))
    different = [
        i for i, (a, b) in enumerate(pairs) if isinstance(a, torch.Tensor) and _kind(a) != _kind(b)
    ]
    if len(given) != len(found) or different:
        text = f"{len(given)} tensors, then {len(found)}"
        if different:
            old, new = pairs[different[0]]
            text = f"{_kind(old)}, then {_kind(new)}"
        raise higher_order.uncaptured_error(
            f"what {name} carries from one step to the next changes: {text}"
        )


def _kind(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return tuple(value.shape), value.dtype, value.stride(), value.device


def scan(kernel: Any, function: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    """The last carry and the stacked outputs, in the structure that `function` gives. The memory
    that torch's kernel makes for the outputs would not be fake outside a mode.
    """
    pure = _Pure("scan", function)
    carry, rows, spec = list(init), [], None
    for row in range(len(xs[0]) if xs else 0):
        inputs = [x.select(0, row) for x in xs]
        leaves, spec = pytree.tree_flatten(pure(*carry, *inputs, *additional_inputs))
        if spec.is_leaf():  # the caller would unpack the rows of a tensor
            raise higher_order.uncaptured_error(
                "combine_fn of scan must return a carry and an output, not one value"
            )
        _check_carried("scan", carry, leaves[: len(carry)])
        carry, out = leaves[: len(carry)], leaves[len(carry) :]
        rows.append(out)
    if spec is None:
        return kernel(function, init, xs, additional_inputs)
    stacked = [
        torch.stack(column) if isinstance(column[0], torch.Tensor) else None
        for column in zip(*rows, strict=True)
    ]
    return pytree.tree_unflatten([*carry, *stacked], spec)


def branches(kernel: Callable[..., Any], predicate: Any, true: Any, false: Any, *args: Any) -> Any:
    """``cond`` with the user's branches, which are checked."""
    return kernel(predicate, _Pure("cond", true), _Pure("cond", false), *args)


def map_rows(kernel: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """``map`` with the user's function, which is checked. torch 2.15 passes more arguments."""
    return kernel(_Pure("map", function), *args, **kwargs)


def while_loop(kernel: Callable[..., Any], cond: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
    """The last result of `body`. If the loop never runs, `body` runs once for its structure."""
    pure = _Pure("while_loop", body)

    def step(*operands: Any) -> Any:
        result = pure(*operands)
        _check_carried("while_loop", operands[: len(args[0])], result)
        return result

    cond, flat = _Pure("while_loop", cond), _Flat(step)
    leaves = kernel(cond, flat, *args, **kwargs)
    if flat.spec is None:
        carried, additional = args[:2]
        flat(*carried, *additional)
    return pytree.tree_unflatten(leaves, flat.spec)


def cond(predicate: Any, true: Any, false: Any, operands: Any) -> Any:
    """The result of the branch that `predicate` chooses."""
    return (true if predicate else false)(*operands)


def cond_in_vmap(is_batched: Callable[[Any], bool], predicate: Any, *args: Any) -> Any:
    """``cond`` in vmap: both branches run if each sample has its own predicate, as in torch."""
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
    """Refuse a transform that has no rule for `op`."""
    raise UnsupportedOpError(
        f"torch.ops.higher_order.{op.name()} has no rule for torch.func's {transform}: eager "
        "refuses it too. Call the function outside the transform, or write it with torch.where"
    )
