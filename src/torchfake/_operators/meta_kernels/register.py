"""The table of meta kernels that replace torch's.

Input: an operator and a device type. Output: a function of plain meta tensors that gives results of
the shapes, dtypes and strides that the kernel of that device gives. Invariant: the first call of an
operator finds all replacements registered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torchfake._torch import kernels

MetaKernel = Callable[..., Any]
_REPLACEMENTS: dict[tuple[Any, str], MetaKernel] = {}
DEVICE_TYPES = ("cpu", "cuda")


def register_meta_kernel(
    *overloads: Any, devices: tuple[str, ...] = DEVICE_TYPES
) -> Callable[[MetaKernel], MetaKernel]:
    """Register the decorated function as meta kernel of `overloads`, for fakes on `devices`.

    This must come before the operator's first use: results of later calls are cached.
    """

    def register(function: MetaKernel) -> MetaKernel:
        for overload in overloads:
            for device in devices:
                _REPLACEMENTS[overload, device] = function
        replacement_for.cache_clear()
        return function

    return register


@cache
def replacement_for(func: Any, device_type: str) -> MetaKernel | None:
    """The meta kernel to run instead of torch's for `func`; None where torch's is right."""
    return own_kernel_for(func, device_type) or kernels.meta_kernel_of(func, device_type)


def own_kernel_for(func: Any, device_type: str) -> MetaKernel | None:
    """The replacement that torchfake has registered for `func` on a device type, if any."""
    if device_type in DEVICE_TYPES:
        return _REPLACEMENTS.get((func, device_type))
    of_each = {_REPLACEMENTS.get((func, kind)) for kind in DEVICE_TYPES}
    return of_each.pop() if len(of_each) == 1 else None  # one for all devices applies to others
