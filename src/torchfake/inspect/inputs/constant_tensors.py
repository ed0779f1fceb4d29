"""Tensors of one value throughout, of a shape that a config determines.

Input: sizes, a shape. Output: tensors, made in whatever mode is active. Invariant: tensors whose
values a model may read are made from host data, so that a small fake of them has known values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchfake.inspect.inputs.sizes import Sizes
from torchfake.observe import keeps_value

Factory = Callable[[Sizes], Any]
"""Makes one argument of ``forward``; None: the argument is left out."""

INT, BOOL = torch.int64, torch.bool


def constant_floats(sizes: Sizes, *shape: int) -> torch.Tensor:
    """Pixels or samples of equal value, and not 0, by which some models recognise padding."""
    return torch.full((sizes.batch, *shape), 0.5, dtype=sizes.dtype)


def readable_ones(*shape: int) -> torch.Tensor | None:
    """Ones that a model can read, because models check whether anything is masked.

    If they are larger than the values that a fake keeps, all rows are one row in memory. If what a
    model computes from that is too large as well, there are none: without a mask models do not
    check.
    """
    count = math.prod(shape)
    if keeps_value(count * INT.itemsize, INT):
        return torch.ones(shape, dtype=INT)
    if keeps_value(count, BOOL) and keeps_value(shape[-1] * INT.itemsize, INT):
        return torch.ones(shape[-1], dtype=INT).expand(shape)
    return None


def of_shape(*dims: str | int, dtype: torch.dtype | None = None, value: float = 0) -> Factory:
    """A factory of tensors of one value, of a batch of `dims`: numbers, config keys or "seq"."""

    def make(sizes: Sizes) -> torch.Tensor:
        shape = [_dim_size(sizes, dim) for dim in dims]
        return torch.full((sizes.batch, *shape), value, dtype=dtype or sizes.dtype)

    return make


def _dim_size(sizes: Sizes, dim: str | int) -> int:
    if isinstance(dim, int):
        return dim
    return sizes.seq if dim == "seq" else sizes.config_int(dim, default=1)


def left_out(sizes: Sizes) -> None:
    """For an argument that the model does not need, or makes itself."""
