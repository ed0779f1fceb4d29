"""Meta kernels of elementwise operators, histograms, and operators that move elements.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel runs; each docstring names the C++ file that is followed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import MetaKernel, register_meta_kernel

aten = torch.ops.aten


@register_meta_kernel(aten.lerp_.Tensor)
def lerp_in_place(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """``lerp_`` by the overload that fits. Torch's meta kernel also tries others: it formats
    the arguments into an error message for each, which fails in a dual level.
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


def _with_numbers(overload: Any, overload_of_list: Any) -> None:
    @register_meta_kernel(overload)
    def kernel(
        tensors: list[Tensor], first: list[Tensor], second: list[Tensor], numbers: Tensor
    ) -> Any:
        """aten/src/ATen/native/ForeachUtils.h: a tensor of numbers, on the CPU, is read into the
        list that the other overload takes.
        """
        one = torch.ones((), dtype=numbers.dtype, device="cpu").item()
        return overload_of_list(tensors, first, second, [one] * len(tensors))


_with_numbers(aten._foreach_addcmul.Tensor, aten._foreach_addcmul.ScalarList)
_with_numbers(aten._foreach_addcmul_.Tensor, aten._foreach_addcmul_.ScalarList)
_with_numbers(aten._foreach_addcdiv.Tensor, aten._foreach_addcdiv.ScalarList)
_with_numbers(aten._foreach_addcdiv_.Tensor, aten._foreach_addcdiv_.ScalarList)


@register_meta_kernel(aten.pow_.Scalar)
def power_in_place(base: Tensor, exponent: Any) -> Tensor:
    """:func:`power` in place: bools to the power of a bool stay bools."""
    is_power_of_bools = base.dtype == torch.bool and isinstance(exponent, bool)
    return base if is_power_of_bools else aten.pow_.Scalar(base, exponent)


for _name in ("left", "right"):  # aten/src/ATen/native/BinaryOps.cpp: torch's Python refuses bools
    for _start, _end in (("__", ""), ("__i", "_")):
        _like = getattr(aten, f"bitwise_{_name}_shift{_end}")
        _packet = getattr(aten, f"{_start}{_name[0]}shift__")
        register_meta_kernel(_packet.Tensor)(_like.Tensor)
        register_meta_kernel(_packet.Scalar)(_like.Tensor_Scalar)


@register_meta_kernel(aten.glu_jvp.default)
def glu_jvp(glu: Tensor, x: Tensor, dx: Tensor, dim: int) -> Tensor:
    """aten/src/ATen/native/GatedLinearUnit.cpp: a product with half of the tangent."""
    tangent: Tensor = aten.mul.Tensor(glu, dx.narrow(dim, 0, glu.shape[dim]))
    return tangent


@register_meta_kernel(aten.glu_backward_jvp.default)
def glu_backward_jvp(
    grad_x: Tensor, grad_glu: Tensor, x: Tensor, dgrad_glu: Tensor, dx: Tensor, dim: int
) -> Tensor:
    """aten/src/ATen/native/GatedLinearUnit.cpp: the tangents of both halves, concatenated."""
    half = aten.mul.Tensor(dgrad_glu, dx.narrow(dim, 0, grad_glu.shape[dim]))
    return torch.cat([half, half], dim)


def _check_bins(counts: list[int]) -> None:
    for dim, count in enumerate(counts):
        if count <= 0:
            text = f"torch.histogram(): bins must be > 0, but got {count} for dimension {dim}"
            raise RuntimeError(text)


def _check_edges(edges: list[Tensor]) -> None:
    for dim, each in enumerate(edges):
        if each.dim() != 1:
            raise RuntimeError(
                f"torch.histogramdd: bins tensor should have one dimension, but got {each.dim()} "
                f"dimensions in the bins tensor for dimension {dim}"
            )
        if not each.numel():
            raise RuntimeError(
                "torch.histogramdd: bins tensor should have at least 1 element, but got 0 elements "
                f"in the bins tensor for dimension {dim}"
            )
    _check_bins([each.numel() - 1 for each in edges])


def _check_weight(shape: list[int], weight: Tensor | None) -> None:
    if weight is not None and list(weight.shape) != shape[:-1]:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the "
            f"input tensor excluding its innermost dimension, but got input with shape {shape} and "
            f"weight with shape {list(weight.shape)}"
        )


def _check_flat_weight(a: Tensor, weight: Tensor | None) -> None:
    flat = None if weight is None else weight.reshape(-1)
    _check_weight([a.numel(), 1], flat)


@register_meta_kernel(aten.histogram.bin_ct)
def histogram(
    a: Tensor, bins: int = 100, *, weight: Tensor | None = None, **_options: Any
) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/Histogram.cpp: there is one edge more than there are counts."""
    _check_flat_weight(a, weight)
    return a.new_empty(bins), a.new_empty(bins + 1)


@register_meta_kernel(aten.histogram.bins_tensor)
def histogram_of_edges(
    a: Tensor, bins: Tensor, *, weight: Tensor | None = None, **_options: Any
) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/Histogram.cpp: the edges are a copy of the caller's."""
    _check_edges([bins])
    _check_flat_weight(a, weight)
    return a.new_empty(bins.numel() - 1), torch.empty_like(bins)


@register_meta_kernel(aten._histogramdd_bin_edges.default)
def histogramdd_edges(a: Tensor, bins: list[int], **_options: Any) -> list[Tensor]:
    """aten/src/ATen/native/Histogram.cpp: there is one edge more than there are bins."""
    return [a.new_empty(count + 1) for count in bins]


@register_meta_kernel(aten._histogramdd_from_bin_cts.default)
def histogramdd_counts(
    a: Tensor, bins: list[int], *, weight: Tensor | None = None, **_options: Any
) -> Tensor:
    """aten/src/ATen/native/Histogram.cpp: there is one count for each bin."""
    _check_bins(bins)
    _check_weight(list(a.shape), weight)
    return a.new_empty(bins)


@register_meta_kernel(aten._histogramdd_from_bin_tensors.default)
def histogramdd_of_edges(
    a: Tensor, bins: list[Tensor], *, weight: Tensor | None = None, **_options: Any
) -> Tensor:
    """aten/src/ATen/native/Histogram.cpp: there is one count less than there are edges."""
    if a.dim() < 2 or len(bins) != a.shape[-1]:
        raise RuntimeError(
            "histogramdd: The size of bins must be equal to the innermost dimension of the input."
        )
    _check_edges(bins)
    _check_weight(list(a.shape), weight)
    return a.new_empty([edges.numel() - 1 for edges in bins])


def _into_truth(functional: Any, *args: Any, out: Tensor, **options: Any) -> Tensor:
    """aten/src/ATen/native/ReduceOps.cpp, allany_meta: ``out=`` is of bools or bytes."""
    if out.dtype not in (torch.bool, torch.uint8):
        name, given = functional.overloadpacket.__name__, out.type().rpartition(".")[2]
        raise RuntimeError(
            f"{name} only supports bool tensor for result, got: {given.removesuffix('Tensor')}"
        )
    aten._resize_output_.default(out, functional(*args, **options).shape, out.device)
    return out


for _packet in (aten.any, aten.all):
    for _into, _functional in (
        (_packet.out, _packet.dim),
        (_packet.dims_out, _packet.dims),
        (_packet.all_out, _packet.default),
    ):
        register_meta_kernel(_into)(partial(_into_truth, _functional))


@register_meta_kernel(aten.roll.default, devices=("cpu",))
def roll(input: Tensor, shifts: list[int], dims: list[int] = ()) -> Tensor:  # type: ignore[assignment]
    """aten/src/ATen/native/TensorTransformations.cpp: two parts of each dim change places."""
    if len(shifts) == len(dims) == 1:
        return _roll_one(input, shifts[0], dims[0])
    if not shifts:
        raise RuntimeError("`shifts` required")
    if not dims and len(shifts) == 1:
        return input.new_empty(input.shape) if input.numel() or input.dim() > 1 else input.clone()
    if len(shifts) != len(dims):
        lengths = f"shifts: {len(shifts)}, dims:{len(dims)}"
        raise RuntimeError(f"shifts and dimensions must align. {lengths}")
    for shift, dim in zip(shifts, dims, strict=True):
        input = _roll_one(input, shift, dim)
    return input


def _roll_one(input: Tensor, shift: int, dim: int) -> Tensor:
    if not input.numel():
        return input.clone()  # whatever the dim is
    length = input.size(dim)
    start = -shift % length
    return torch.cat((input.narrow(dim, start, length - start), input.narrow(dim, 0, start)), dim)


@register_meta_kernel(aten.index_select.default, devices=("cpu",))
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """aten/src/ATen/native/TensorAdvancedIndexing.cpp. Torch's Python takes a row of no rows."""
    if input.numel() or not input.dim():
        result: Tensor = aten.index_select.default(input, dim, index)
        return result
    size = list(input.shape)
    size[dim] = index.numel()
    return input.new_empty(size)


def _with_empty(func: Any) -> MetaKernel:
    """The same file: contiguous. Of an empty tensor, C++ asks for a row if it is on meta."""

    def kernel(input: Tensor, *args: Any, **options: Any) -> Tensor:
        if input.numel():
            func(input, *args, **options)  # checks the sizes
        return input.new_empty(input.shape)

    return kernel


for _func in (aten.index_add.default, aten.index_reduce.default):
    register_meta_kernel(_func, devices=("cpu",))(_with_empty(_func))


def _refusing_empty(func: Any) -> MetaKernel:
    """aten/src/ATen/native/ReduceAllOps.cpp."""

    def kernel(input: Tensor) -> Tensor:
        torch._check(
            input.numel() > 0,
            lambda: (
                f"{func._schema.name[6:]}(): Expected reduction dim to be specified for "
                "input.numel() == 0. Specify the reduction dim with the 'dim' argument."
            ),
        )
        return func(input)  # type: ignore[no-any-return]

    return kernel


for _func in (aten.max.default, aten.min.default):
    register_meta_kernel(_func)(_refusing_empty(_func))


def _refusing_empty_dim(func: Any) -> MetaKernel:
    """aten/src/ATen/native/ReduceOpsUtils.h, zero_numel_check_dims."""

    def kernel(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        if input.dim() and not input.shape[dim]:
            raise IndexError(
                f"median(): Expected reduction dim {dim % input.dim()} to have non-zero size."
            )
        return func(input, dim, keepdim)  # type: ignore[no-any-return]

    return kernel


for _func in (aten.median.dim, aten.nanmedian.dim):
    register_meta_kernel(_func)(_refusing_empty_dim(_func))


@register_meta_kernel(aten.nansum.default)
def nansum(input: Tensor, dim: Any = None, *args: Any, **options: Any) -> Tensor:
    """aten/src/ATen/native/ReduceOps.cpp: no dims are all of them."""
    return aten.nansum.default(input, dim or None, *args, **options)  # type: ignore[no-any-return]


@register_meta_kernel(aten.logsumexp.default)
def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """The same file: the largest element, without dims, is added to a result that has dims."""
    if not dim and input.dim() and input.numel() and not keepdim:
        ones = [1] * input.dim()
        raise RuntimeError(f"output with shape [] doesn't match the broadcast shape {ones}")
    return aten.logsumexp.default(input, dim, keepdim)  # type: ignore[no-any-return]


@register_meta_kernel(aten.isin.Scalar_Tensor)
def isin(_number: Any, test_elements: Tensor, **_options: Any) -> Tensor:
    """aten/src/ATen/native/TensorCompare.cpp: the kernel makes a tensor of the number."""
    return test_elements.new_empty((), dtype=torch.bool)


@register_meta_kernel(aten.nan_to_num_.default)
def nan_to_num_(input: Tensor, *_numbers: Any) -> Tensor:
    """aten/src/ATen/native/UnaryOps.cpp: of any dtype; torch's Python refuses complex numbers."""
    return input
