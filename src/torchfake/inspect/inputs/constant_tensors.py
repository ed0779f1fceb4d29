"""Tensors filled with one value, of shapes that a config determines.

Input: sizes, a shape. Output: tensors, created in the active mode. Invariant: tensors whose values
a model may read are created from host data, so that small fakes have known values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchfake.inspect.inputs.sizes import Sizes
from torchfake.observe import keeps_value

Factory = Callable[[Sizes], Any]
"""Creates one argument of ``forward``; if it returns None, the argument is left out."""

INT, BOOL = torch.int64, torch.bool


def constant_floats(sizes: Sizes, *shape: int) -> torch.Tensor:
    """Pixels or samples of one value; not 0, by which some models recognise padding."""
    return torch.full((sizes.batch, *shape), 0.5, dtype=sizes.dtype)


def readable_ones(*shape: int) -> torch.Tensor | None:
    """A mask of ones with known values, because models check whether anything is masked.

    If the mask is larger than the values that a fake keeps, its rows share one row of memory. If
    the values computed from that would be too large as well, the result is None: without a mask,
    models do not check.
    """
    count = math.prod(shape)
    if keeps_value(count * INT.itemsize, INT):
        return torch.ones(shape, dtype=INT)
    if keeps_value(count, BOOL) and keeps_value(shape[-1] * INT.itemsize, INT):
        return torch.ones(shape[-1], dtype=INT).expand(shape)
    return None


def of_shape(*dims: str | int, dtype: torch.dtype | None = None, value: float = 0) -> Factory:
    """A factory of tensors of one value, of shape (batch, *dims): numbers, config keys or "seq"."""

    def make(sizes: Sizes) -> torch.Tensor:
        shape = [_dim_size(sizes, dim) for dim in dims]
        return torch.full((sizes.batch, *shape), value, dtype=dtype or sizes.dtype)

    return make


def _dim_size(sizes: Sizes, dim: str | int) -> int:
    if isinstance(dim, int):
        return dim
    return sizes.seq if dim == "seq" else sizes.config_int(dim, default=1)


def left_out(sizes: Sizes) -> None:
    """A factory that leaves an argument out, which the model does not need or creates itself."""
