"""Meta kernels of elementwise operators and histograms.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel is run; each names the C++ file that it follows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import register_meta_kernel

aten = torch.ops.aten


@register_meta_kernel(aten.lerp_.Tensor)
def lerp_in_place(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """As torch's meta kernel, which looks for the overload of ``lerp`` by trying them: of the one
    that does not fit it makes an error message with the arguments, which fails in a dual level.
    """
    result: Tensor = aten.lerp.Tensor(start, end, weight)
    if result.shape != start.shape:
        raise RuntimeError(
            f"output with shape {list(start.shape)} doesn't match the broadcast "
            f"shape {list(result.shape)}"
        )
    return start


@register_meta_kernel(aten.where.self)
def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """aten/src/ATen/native/TensorCompare.cpp: a condition of bytes is allowed, and deprecated."""
    is_bytes = condition.dtype == torch.uint8
    result: Tensor = aten.where.self(condition.bool() if is_bytes else condition, a, b)
    return result


@register_meta_kernel(aten.pow.Tensor_Scalar)
def power(base: Tensor, exponent: Any) -> Tensor:
    """aten/src/ATen/native/Pow.cpp: bools to the power of a bool are bools, where torch's Python
    kernel gives integers.
    """
    result: Tensor = aten.pow.Tensor_Scalar(base, exponent)
    return result.to(torch.result_type(base, exponent))


@register_meta_kernel(aten._foreach_pow.Scalar)
def powers(bases: list[Tensor], exponent: Any) -> list[Tensor]:
    """The same of each."""
    return [power(base, exponent) for base in bases]


@register_meta_kernel(aten.pow_.Scalar)
def power_in_place(base: Tensor, exponent: Any) -> Tensor:
    """The same in place."""
    is_power_of_bools = base.dtype == torch.bool and isinstance(exponent, bool)
    return base if is_power_of_bools else aten.pow_.Scalar(base, exponent)


@register_meta_kernel(aten.glu_jvp.default)
def glu_jvp(glu: Tensor, x: Tensor, dx: Tensor, dim: int) -> Tensor:
    """aten/src/ATen/native/GatedLinearUnit.cpp: a product with half of the tangent."""
    tangent: Tensor = aten.mul.Tensor(glu, dx.narrow(dim, 0, glu.shape[dim]))
    return tangent


@register_meta_kernel(aten.glu_backward_jvp.default)
def glu_backward_jvp(
    grad_x: Tensor, grad_glu: Tensor, x: Tensor, dgrad_glu: Tensor, dx: Tensor, dim: int
) -> Tensor:
    """The same file: the tangents of both halves, concatenated."""
    half = aten.mul.Tensor(dgrad_glu, dx.narrow(dim, 0, grad_glu.shape[dim]))
    return torch.cat([half, half], dim)


@register_meta_kernel(aten.view_copy.default)
def view_copy(tensor: Tensor, size: list[int]) -> Tensor:
    """aten/src/ATen/native/TensorShape.cpp: what cannot be viewed is reshaped."""
    return tensor.new_empty(tensor.reshape(size).shape)


@register_meta_kernel(aten.histogram.bin_ct)
def histogram(a: Tensor, bins: int = 100, **_options: Any) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/Histogram.cpp: there is one edge more than there are counts."""
    return a.new_empty(bins), a.new_empty(bins + 1)


@register_meta_kernel(aten.histogram.bins_tensor)
def histogram_of_edges(a: Tensor, bins: Tensor, **_options: Any) -> tuple[Tensor, Tensor]:
    """The same file: the edges are a copy of the caller's."""
    return a.new_empty(bins.numel() - 1), torch.empty_like(bins)


@register_meta_kernel(aten._histogramdd_bin_edges.default)
def histogramdd_edges(a: Tensor, bins: list[int], **_options: Any) -> list[Tensor]:
    """The same file."""
    return [a.new_empty(count + 1) for count in bins]


@register_meta_kernel(aten._histogramdd_from_bin_cts.default)
def histogramdd_counts(a: Tensor, bins: list[int], **_options: Any) -> Tensor:
    """The same file."""
    return a.new_empty(bins)


@register_meta_kernel(aten._histogramdd_from_bin_tensors.default)
def histogramdd_of_edges(a: Tensor, bins: list[Tensor], **_options: Any) -> Tensor:
    """The same file."""
    return a.new_empty([edges.numel() - 1 for edges in bins])


@register_meta_kernel(aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default)
def logical(a: Tensor, b: Tensor) -> Tensor:
    """Strides as those of a comparison of the same arguments. For a broadcast against
    channels_last, torch's Python kernel orders strides differently from TensorIterator.
    """
    result: Tensor = aten.ne.Tensor(a, b)
    return result


@register_meta_kernel(aten.copysign.Tensor)
def copysign(a: Tensor, b: Tensor) -> Tensor:
    """Strides as those of another function of two floats, for the same reason."""
    result: Tensor = aten.atan2.default(a, b)
    return result
