"""Tangents of tensors, and zero tensors: tensors that are zero, immutable and without memory.

Input: sizes, strides, dtypes, devices; tensors. Output: zero tensors, and whether a tensor is one;
tangents. Invariant: nothing reads the memory of a zero tensor, since there is none.

Forward-mode differentiation makes zero tensors: as tangents of values that do not depend on the
input. C++ recognises them by a dispatch key above Python's, whose kernels compute with them: a
product with a zero tensor is a zero tensor, whatever the other factor. The key is kept by views and
carried by wrappers, so that the same kernels run for fakes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad

from torchfake._torch import autograd, dispatch_keys

aten = torch.ops.aten

_ZERO = torch._C.DispatchKeySet(torch._C.DispatchKey.ZeroTensor)


def wrapper_keys() -> Any:
    """The dispatch keys that a wrapper carries in addition, to be a zero tensor."""
    keys = _ZERO | dispatch_keys.ZERO_WRAPPER_KEY.keys
    dispatch_keys.ZERO_WRAPPER_KEY.fall_through_in_higher_order_operators()
    return keys


def dispatch_views_to_python() -> None:
    """Have views of wrappers that are zero tensors reach Python.

    Most view operators have no kernel for zero tensors. The operators below have the CPU's kernel,
    which would return a plain tensor in place of a wrapper.
    """
    for op in (aten.view.default, aten.as_strided.default, aten._reshape_alias.default):
        dispatch_keys.ZERO_WRAPPER_KEY.register(op, _view, skipping=_ZERO)


def _view(redispatch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return redispatch(*args, **kwargs)


dispatch_keys.ZERO_WRAPPER_KEY.before_use(dispatch_views_to_python)


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is a zero tensor: not whether its elements are zeros."""
    return bool(tensor._is_zerotensor())


def zero_tensor(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A zero tensor with this metadata."""
    length = 1 + offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    base: torch.Tensor = torch._efficientzerotensor((max(length, 0),), dtype=dtype, device=device)
    return base.as_strided(size, stride, offset)


def zero_number(dtype: torch.dtype) -> bool | int | float | complex:
    """Zero, as a Python number of the type that corresponds to `dtype`."""
    number: bool | int | float | complex = torch.zeros((), dtype=dtype, device="cpu").item()
    return number


def tangent_of(value: Any) -> torch.Tensor | None:
    """The tangent of `value` in the current dual level, if it is a tensor and has one."""
    if torch.autograd.forward_ad._current_level < 0 or not isinstance(value, torch.Tensor):
        return None
    if autograd.is_transformed(value):
        return None
    tangent: torch.Tensor | None = torch.autograd.forward_ad.unpack_dual(value).tangent
    return tangent


def tangent_of_result(
    op: Any, at: int, args: list[Any], tangents: list[Any], options: dict[str, Any]
) -> torch.Tensor:
    """The tangent of result number `at` of `op`, called with real tensors, which stay unchanged."""
    forward_ad = torch.autograd.forward_ad
    is_nested = forward_ad._current_level >= 0  # there is only one level
    with contextlib.nullcontext() if is_nested else forward_ad.dual_level():
        duals = [
            arg
            if not isinstance(arg, torch.Tensor)
            else arg.clone()
            if tangent is None
            else forward_ad.make_dual(forward_ad.unpack_dual(arg).primal, tangent)
            for arg, tangent in zip(args, tangents, strict=True)
        ]
        result = op(*duals, **options)
        part = result if isinstance(result, torch.Tensor) else result[at]
        tangent: torch.Tensor = forward_ad.unpack_dual(part).tangent
        return tangent
