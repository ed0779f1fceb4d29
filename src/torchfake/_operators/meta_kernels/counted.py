"""Operators whose results have a length that depends on values: the results for a given length.

Input: an operator's arguments. Output: a :class:`Counted`: the tensor whose values decide, the
bounds of the length, and a function that gives the results on meta. Invariant: metadata and strides
are those of the CPU kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Meta = torch.Tensor


class Counted(NamedTuple):
    """One call of an operator whose result has a length that depends on values."""

    tensor: torch.Tensor  # the tensor whose values decide the length
    lowest: int
    highest: int | None
    results: Callable[[int], Any]  # gives meta tensors for a length


def _empty(*size: int, dtype: torch.dtype = torch.int64) -> Meta:
    return torch.empty(size, dtype=dtype, device="meta")


def _nonzero(x: Any) -> Counted:
    def results(count: int) -> Meta:
        place = (count, x.dim()), (1, count)
        return torch.empty_strided(*place, dtype=torch.int64, device="meta")

    return Counted(x, 0, x.numel(), results)


def _masked_select(x: Any, mask: Any) -> Counted:
    numel = torch.Size(torch.broadcast_shapes(x.shape, mask.shape)).numel()
    return Counted(mask, 0, numel, lambda count: _empty(count, dtype=x.dtype))


def _unique(x: Any, sorted: bool = True, inverse: bool = False) -> Counted:
    counted = _unique2(x, sorted, inverse)
    return counted._replace(results=lambda count: counted.results(count)[:2])


def _unique2(
    x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Counted:
    def results(count: int) -> tuple[Meta, Meta, Meta]:
        inverse = _empty(*x.shape) if return_inverse else _empty(0)
        return _empty(count, dtype=x.dtype), inverse, _empty(count if return_counts else 0)

    return Counted(x, min(x.numel(), 1), x.numel(), results)


def _unique_consecutive(
    x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Counted:
    if dim is None:
        return _unique2(x, True, return_inverse, return_counts)
    return _unique_dim(x, dim, True, return_inverse, return_counts)


def _unique_dim(
    x: Any,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Counted:
    size, at = list(x.shape), dim % max(x.dim(), 1)

    def results(count: int) -> tuple[Meta, Meta, Meta]:
        rows = _empty(count, *size[:at], *size[at + 1 :], dtype=x.dtype)
        rows = rows.movedim(0, at) if x.numel() else _empty(*x.shape, dtype=x.dtype)
        return rows, _empty(size[at]), _empty(count)

    return Counted(x, min(size[at], 1), size[at], results)


def _unique_dim_consecutive(
    x: Any, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Counted:
    return _unique_dim(x, dim, True, return_inverse, return_counts)


def _repeat_interleave(*args: Any, output_size: int | None = None) -> Counted | None:
    if len(args) > 1:  # overloads that take the repeated tensor are composites of the other one
        return None
    (repeats,) = args
    lowest = 0 if output_size is None else output_size
    return Counted(repeats, lowest, output_size, lambda count: _empty(count, dtype=repeats.dtype))


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Counted:
    kept = torch.float32, torch.float64
    dtype = torch.int64 if weights is None else weights.dtype
    dtype = dtype if weights is None or dtype in kept else torch.float64
    dtype = dtype if x.numel() else torch.int64
    lowest = max(minlength, min(x.numel(), 1))
    highest = None if x.numel() else minlength
    return Counted(x, lowest, highest, lambda count: _empty(count, dtype=dtype))


def _nms(boxes: Any, scores: Any, iou_threshold: float) -> Counted:
    num_boxes = boxes.shape[0]
    return Counted(scores, min(num_boxes, 1), num_boxes, _empty)


COUNTED: dict[str, Callable[..., Counted | None]] = {
    "aten::nonzero": _nonzero,
    "aten::masked_select": _masked_select,
    "aten::_unique": _unique,
    "aten::_unique2": _unique2,
    "aten::unique_consecutive": _unique_consecutive,
    "aten::unique_dim": _unique_dim,
    "aten::unique_dim_consecutive": _unique_dim_consecutive,
    "aten::repeat_interleave": _repeat_interleave,
    "aten::bincount": _bincount,
    "torchvision::nms": _nms,
}
"""The functions by operator packet; a result of None means that nothing is counted in the call."""
