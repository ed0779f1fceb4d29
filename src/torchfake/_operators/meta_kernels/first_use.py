"""The meta kernel to run for an operator. The first lookup registers the kernels of this package.

Input: an operator and a device type. Output: the meta kernel that replaces torch's, if any.
Invariant: the kernels are imported when they are registered, which takes milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchfake._operators.meta_kernels import register
from torchfake._operators.meta_kernels.register import MetaKernel


@functools.cache
def _register_ours() -> None:
    """Register the kernels of this package, by importing them, which takes milliseconds."""
    from torchfake._operators.meta_kernels import (  # noqa: F401
        convolutions,
        cuda,
        elementwise,
        factories,
        layers,
        linear_algebra,
        losses,
    )


def register_meta_kernel(
    *overloads: Any, devices: tuple[str, ...] = register.DEVICE_TYPES
) -> Callable[[MetaKernel], MetaKernel]:
    """:func:`register.register_meta_kernel`, which may also replace a kernel of this package."""
    _register_ours()
    return register.register_meta_kernel(*overloads, devices=devices)


def replacement_for(func: Any, device_type: str) -> MetaKernel | None:
    """The meta kernel to run instead of torch's for `func`; None where torch's is right."""
    _register_ours()
    return register.replacement_for(func, device_type)


def own_kernel_for(func: Any, device_type: str) -> MetaKernel | None:
    """The same of ours alone."""
    _register_ours()
    return register.own_kernel_for(func, device_type)


def has_replacement(func: Any) -> bool:
    """Whether there is a replacement for `func` on every type of device."""
    return all(replacement_for(func, device_type) for device_type in register.DEVICE_TYPES)
