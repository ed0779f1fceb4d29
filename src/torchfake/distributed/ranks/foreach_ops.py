"""An optimizer's operators on lists of DTensors, run on their shards.

Input: a foreach or fused operator and lists of DTensors. Output: its result, or ``NotImplemented``,
which leaves the operator to DTensor. Invariant: operators run on shards only if DTensor would give
the same result: they are elementwise, and their tensors have equal placements.

DTensor propagates the placements of each element of a list separately, which takes milliseconds per
element: half a minute for the parameters of a large model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._torch.distributed.dtensors import is_dtensor, is_partial_sum, local_tensor_of
from torchfake.observe import FakeTensor, traits_of

_NAMES = (
    "abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "copy", "div", "exp", "lerp",
    "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "rsqrt", "sign", "sqrt", "sub", "zero",
)  # fmt: skip

FOREACH_OPS = frozenset(
    [f"aten::_foreach_{name}{end}" for name in _NAMES for end in ("", "_")]
    + [f"aten::_fused_{name}_" for name in ("adam", "adamw", "sgd", "adagrad")]
)
"""Operators whose results have the shapes and placements of the tensors in the first list."""

Run = Callable[[Any, Any, Any, Any], Any]


def run_on_shards(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of `run` for the shards of the DTensors; ``NotImplemented`` if DTensor would give
    another result. `run` takes an operator, the classes of its arguments, and the arguments.
    """
    if traits_of(func).packet not in FOREACH_OPS or not isinstance(args[0], (list, tuple)):
        return NotImplemented
    first = args[0]
    if not all(map(_has_values, first)):
        return NotImplemented
    if not all(_matches(value, first) for value in (*args, *kwargs.values())):
        return NotImplemented
    shards = tuple(_shards(value) for value in args)
    result = run(func, (FakeTensor,), shards, {name: _shards(v) for name, v in kwargs.items()})
    return _wrapped(result, first)


def _has_values(tensor: Any) -> bool:
    """Whether a tensor is a DTensor without a pending sum over ranks."""
    return is_dtensor(tensor) and not is_partial_sum(tensor)


def _matches(value: Any, first: Any) -> bool:
    """Whether an argument has no DTensors, or DTensors with the placements of the list `first`."""
    if isinstance(value, (list, tuple)):
        if len(value) not in (0, len(first)):
            return not any(isinstance(item, torch.Tensor) for item in value)
        pairs = zip(value, first, strict=bool(value))
        return all(_has_placements_of(item, other) for item, other in pairs)
    return not isinstance(value, torch.Tensor) or _is_plain_scalar(value)


def _has_placements_of(item: Any, other: Any) -> bool:
    if not is_dtensor(item):
        return not isinstance(item, torch.Tensor) or _is_plain_scalar(item)
    return item is other or (
        item.placements == other.placements
        and item.shape == other.shape
        and item.device_mesh == other.device_mesh
    )


def _is_plain_scalar(value: torch.Tensor) -> bool:
    return not is_dtensor(value) and value.numel() == 1


def _shards(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [local_tensor_of(item) for item in value]
    return value


def _wrapped(result: Any, first: Any) -> Any:
    """Results as DTensors with the placements of the list `first`."""
    if not isinstance(result, (list, tuple)):
        return result
    from torch.distributed.tensor import DTensor

    return [
        DTensor.from_local(
            local, other.device_mesh, other.placements, shape=other.shape, stride=other.stride()
        )
        for local, other in zip(result, first, strict=True)
    ]
