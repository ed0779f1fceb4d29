"""Replacements of meta kernels that are missing, or that lay results out differently from eager.

Start here if an operator fails on fakes for lack of a meta kernel, or if its result has a wrong
shape, dtype or stride. tests/opinfo compares all of them with eager.

Its files, in reading order:

    register           which meta kernels replace torch's
    layers             embeddings, norms, convolutions, pooling, attention
    losses             losses, gradients, optimizer steps
    elementwise        elementwise operators, histograms
    linear_algebra     decompositions, products
    draws              random numbers
    fake_quantization  floats rounded to the grid of an integer dtype
    cuda               operators that CUDA alone has, or has otherwise
    counted            results as long as values say, for an answer how long that is
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
        cuda,
        draws,
        elementwise,
        fake_quantization,
        layers,
        linear_algebra,
        losses,
    )


def register_meta_kernel(
    *overloads: Any, devices: tuple[str, ...] = register.DEVICE_TYPES
) -> Callable[[MetaKernel], MetaKernel]:
    """:func:`register.register_meta_kernel`, in place of a kernel of ours too."""
    _register_ours()
    return register.register_meta_kernel(*overloads, devices=devices)


def replacement_for(func: Any, device_type: str) -> MetaKernel | None:
    """The meta kernel to run instead of torch's for `func`; None where torch's is right."""
    _register_ours()
    return register.replacement_for(func, device_type)


def has_replacement(func: Any) -> bool:
    """Whether there is a replacement for `func` on every type of device."""
    return all(replacement_for(func, device_type) for device_type in register.DEVICE_TYPES)
