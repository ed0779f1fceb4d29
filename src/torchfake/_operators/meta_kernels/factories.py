"""Meta kernels of operators that make tensors of numbers: random ones, and ranges.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel runs; each docstring names the C++ file that is followed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import MetaKernel, register_meta_kernel

aten = torch.ops.aten


@register_meta_kernel(
    aten.normal_.default, aten.uniform_.default, aten.exponential_.default,
    aten.geometric_.default, aten.cauchy_.default, aten.log_normal_.default,
    aten.random_.default, aten.random_.to, getattr(aten.random_, "from"), aten.bernoulli_.float
)  # fmt: skip
def random_fill(target: Tensor, *_args: Any, **_options: Any) -> Tensor:
    """Random fills write in place. For empty tensors eager accepts any dtype, which torch's meta
    kernels do not; ``_eager_checks/dtypes`` refuses the dtypes that eager refuses.
    """
    return target


@register_meta_kernel(aten.randn.default, aten.randn.generator)
def randn(size: list[int], *, generator: Any = None, **options: Any) -> Tensor:
    """``randn`` with any dtype: torch's meta kernel refuses some even for empty tensors."""
    return torch.empty(size, **options)


@register_meta_kernel(aten.randn_like.default, aten.randn_like.generator)
def randn_like(tensor: Tensor, *, generator: Any = None, **options: Any) -> Tensor:
    """``randn_like`` with any dtype: torch's meta kernel refuses some even for empty tensors."""
    return torch.empty_like(tensor, **options)


@register_meta_kernel(aten.bernoulli.out)
def bernoulli_into(input: Tensor, *, out: Tensor, **_options: Any) -> Tensor:
    """aten/src/ATen/native/Distributions.cpp: `out` may have any dtype."""
    return out.resize_(input.shape)


@register_meta_kernel(aten.normal.Tensor_float_out)
def normal_into(mean: Tensor, _std: float = 1, *, out: Tensor, **_options: Any) -> Tensor:
    """normal_out_impl in aten/src/ATen/native/DistributionTemplates.h: the standard deviation
    counts as of the shape of `out`, which in trials of sizes has no elements.
    """
    try:
        shape = torch.broadcast_shapes(mean.shape, out.shape)
    except RuntimeError:
        if out.numel():
            raise
        shape = mean.shape
    return out if out.shape == shape else out.resize_(shape)


@register_meta_kernel(aten.normal.float_float)
def normal_of_size(_mean: float, _std: float, size: list[int], **options: Any) -> Tensor:
    """``torch.normal`` of two numbers and a size, with any dtype."""
    options.pop("generator", None)
    return torch.empty(size, **options)


@register_meta_kernel(aten.native_dropout.default, devices=("cpu",))
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/Dropout.cpp: an empty input is its own result."""
    if input.numel() == 0:
        return input, torch.empty_like(input)
    mask = torch.empty_like(input, dtype=torch.bool)
    return input.clone() if train is False else input.mul(mask), mask


@register_meta_kernel(aten.normal.Tensor_float, aten.normal.float_Tensor)
def normal(mean: Any, std: Any = 1.0, **_options: Any) -> Tensor:
    """DistributionTemplates.h, normal_impl: contiguous, of the dtype of the tensor parameter."""
    parameter = mean if isinstance(mean, Tensor) else std
    return parameter.new_empty(parameter.shape)


@register_meta_kernel(aten.normal.Tensor_Tensor)
def normal_of_tensors(mean: Tensor, std: Tensor, **_options: Any) -> Tensor:
    """DistributionTemplates.h, normal_impl: contiguous, of the mean's dtype."""
    return mean.new_empty(torch.broadcast_shapes(mean.shape, std.shape))


@register_meta_kernel(
    aten._sample_dirichlet.default, aten.binomial.default, aten._standard_gamma.default
)
def draw_like_first(parameter: Tensor, *_args: Any, **_options: Any) -> Tensor:
    """aten/src/ATen/native/Distributions.cpp: one draw for each parameter, contiguous."""
    return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)


@register_meta_kernel(aten.arange.out, aten.arange.start_out)
def arange_into(*numbers: Any, out: Tensor) -> Tensor:
    """aten/src/ATen/native/RangeFactories.cpp: `out` keeps its shape if it has as many elements."""
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    size = arange(start, end, step, dtype=out.dtype, device="meta").shape
    return out if out.numel() == size.numel() else out.resize_(size)


@register_meta_kernel(aten.arange.start_step)
def arange(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **options: Any
) -> Tensor:
    """The same file: a range of integers of fewer than 64 bits has as many as one of floats, whose
    step need not be whole.
    """
    of_floats = dtype in _NARROW_INTEGERS and not all(type(n) is int for n in (start, end, step))
    if not of_floats:
        return aten.arange.start_step(start, end, step, dtype=dtype, **options)  # type: ignore[no-any-return]
    return aten.arange.start_step(start, end, step, dtype=torch.float64, **options).to(dtype)  # type: ignore[no-any-return]


_NARROW_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.uint8)


@register_meta_kernel(
    *(
        getattr(packet, name)
        for packet in (aten.linspace, aten.logspace)
        for name in packet.overloads()
        if "out" in name
    )
)
def steps_into(_start: Any, _end: Any, steps: int, _base: float = 10.0, *, out: Tensor) -> Tensor:
    """aten/src/ATen/native/RangeFactories.cpp: `out` keeps its shape if it has as many elements."""
    return out if out.numel() == steps else out.resize_(steps)


def _between_tensors(func: Any, of_numbers: Any) -> MetaKernel:
    """The same file: the dtype follows from the numbers that the bounds are, if none is given."""

    def kernel(*args: Any, **options: Any) -> Tensor:
        bounds = args[:2]
        refused = any(isinstance(bound, Tensor) and bound.dim() for bound in bounds)
        if refused:
            return func(*args, **options)  # type: ignore[no-any-return]
        return of_numbers(*map(_stand_in, bounds), *args[2:], **options)  # type: ignore[no-any-return]

    return kernel


def _stand_in(bound: Any) -> Any:
    """A number of the kind that a tensor is."""
    if not isinstance(bound, Tensor):
        return bound
    return 0j if bound.is_complex() else 0.0


for _packet in (aten.linspace, aten.logspace):
    for _func in (_packet.Tensor_Tensor, _packet.Tensor_Scalar, _packet.Scalar_Tensor):
        register_meta_kernel(_func)(_between_tensors(_func, _packet.default))
