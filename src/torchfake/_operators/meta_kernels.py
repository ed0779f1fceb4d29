"""Replacements of meta kernels that are missing, or that lay results out differently from eager.

Start here if an operator fails on fakes for lack of a meta kernel, or if its result has a wrong
shape, dtype or stride.

Input: an operator and a device type. Output: a function of plain meta tensors that gives results of
the shapes, dtypes and strides that the kernel of that device gives. Invariant: a replacement reads
no values and runs no real kernel. Each names the C++ file that it follows; tests/opinfo compares
all of them with eager. Called by: ``_operators/interpreter``, for each operator that it runs;
``_cache/cache`` and ``_recording/value_reads``, which check whether there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchfake._torch import kernels, zero_tensors

aten = torch.ops.aten

MetaKernel = Callable[..., Any]
_REPLACEMENTS: dict[tuple[Any, str], MetaKernel] = {}
_DEVICE_TYPES = ("cpu", "cuda")


def register_meta_kernel(
    *overloads: Any, devices: tuple[str, ...] = _DEVICE_TYPES
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
    return _REPLACEMENTS.get((func, device_type)) or kernels.meta_kernel_of(func, device_type)


def has_replacement(func: Any) -> bool:
    """Whether there is a replacement for `func` on every type of device."""
    return all(replacement_for(func, device_type) is not None for device_type in _DEVICE_TYPES)


def _column_major(tensor: Tensor, shape: Any) -> Tensor:
    """An empty tensor like `tensor` whose last two dims are column-major, as LAPACK's are."""
    *batch, rows, columns = shape
    return tensor.new_empty((*batch, columns, rows)).mT


@register_meta_kernel(aten.geqrf.default)
def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/BatchLinearAlgebra.cpp, geqrf_out_helper."""
    tau = a.new_empty((*a.shape[:-2], min(a.shape[-2:])))
    return _column_major(a, a.shape), tau


@register_meta_kernel(aten.linalg_lstsq.default)
def lstsq(
    a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """linalg_lstsq_out in the same file; where residuals depend on the rank, the rank is full."""
    rows, columns = a.shape[-2:]
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    batch = torch.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    driver = driver or ("gels" if a.is_cuda else "gelsy")
    solution = _column_major(a, (*batch, max(rows, columns), right.shape[-1]))
    solution = solution.narrow(-2, 0, columns)
    has_residuals = rows > columns and driver != "gelsy"
    real = a.dtype.to_real() if a.dtype.is_complex else a.dtype
    residuals = a.new_empty((*batch, right.shape[-1]) if has_residuals else (0,), dtype=real)
    has_rank = driver != "gels"
    rank = a.new_empty(a.shape[:-2] if has_rank else (0,), dtype=torch.int64)
    has_singular = driver in ("gelsd", "gelss")
    singular = a.new_empty(
        (*a.shape[:-2], min(rows, columns)) if has_singular else (0,), dtype=real
    )
    return solution.squeeze(-1) if is_vector else solution, residuals, rank, singular


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


def _dot_with_zeros(func: Any) -> MetaKernel:
    """aten/src/ATen/native/Blas.cpp: a product with a zero tensor is one too."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = func(a, b)
        if not zero_tensors.is_zero_tensor(a) and not zero_tensors.is_zero_tensor(b):
            return result
        return zero_tensors.zero_tensor((), (), 0, result.dtype, result.device)

    return kernel


register_meta_kernel(aten.dot.default)(_dot_with_zeros(aten.dot.default))
register_meta_kernel(aten.vdot.default)(_dot_with_zeros(aten.vdot.default))


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


@register_meta_kernel(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    *_options: Any,
    **_named: Any,
) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/LossCTC.cpp. The size of the saved table follows from the longest
    target; where the lengths are not known, from the longest possible one.
    """
    batch = log_probs.shape[1]
    if isinstance(target_lengths, Tensor):
        longest = targets.shape[1] if targets.dim() > 1 else targets.shape[0]
    else:
        longest = max(target_lengths, default=0)
    table = log_probs.new_empty((batch, log_probs.shape[0], 2 * longest + 1))
    return log_probs.new_empty(batch), table


_SUM, _MAX = 0, 2
_FBGEMM_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@register_meta_kernel(aten._embedding_bag.default, devices=("cpu",))
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """aten/src/ATen/native/EmbeddingBag.cpp: what is kept for the backward pass; no positions
    where the sums are FBGEMM's.
    """
    options = scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset
    output = aten._embedding_bag.default(weight, indices, offsets, *options, padding_idx)[0]
    scales_fit = per_sample_weights is None or per_sample_weights.stride(0) == 1
    is_fused = weight.dtype in _FBGEMM_DTYPES and weight.stride(1) == 1 and padding_idx < 0
    num_bags, dim = output.shape
    has_positions = mode != _SUM or not (is_fused and scales_fit)
    integers = indices.new_empty(0, dtype=torch.promote_types(indices.dtype, offsets.dtype))
    bag_sizes = integers.new_empty(num_bags)
    positions = integers.new_empty(indices.shape[0] if has_positions else 0)
    maxima = integers.new_empty((num_bags, dim) if mode == _MAX else num_bags)
    return output, positions, bag_sizes, maxima


@register_meta_kernel(aten._embedding_bag_forward_only.default, devices=("cpu",))
def embedding_bag_forward_only(
    weight: Tensor, indices: Tensor, offsets: Tensor, *args: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same file: sums have a size for each offset, the last one included."""
    output, positions, bag_sizes, maxima = embedding_bag(weight, indices, offsets, *args)
    if len(args) < 2 or args[1] == _SUM:
        bag_sizes = bag_sizes.new_empty(offsets.shape[0])
        maxima = torch.empty_like(bag_sizes)
    return output, positions, bag_sizes, maxima


@register_meta_kernel(aten.max_unpool2d.default, devices=("cpu",))
def max_unpool2d(input: Tensor, indices: Tensor, output_size: list[int]) -> Tensor:
    """aten/src/ATen/native/MaxUnpooling.cpp: the CPU keeps the input's memory format."""
    output = input.new_empty((*input.shape[:-2], *output_size))
    if input.dim() != 4:
        return output
    return output.to(memory_format=kernels.memory_format_of(input))


@register_meta_kernel(
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default, devices=("cpu",)
)
def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """aten/src/ATen/native/Normalization.cpp: the CPU saves statistics in the parameters' dtype,
    and does not save those that it was given.
    """
    output = torch.empty_like(input, memory_format=kernels.memory_format_of(input))
    _mean, _variance, training, *_ = rest
    statistics = _statistics_like(input, weight, (input.shape[1] if training else 0,))
    return output, statistics, torch.empty_like(statistics)


@register_meta_kernel(aten._native_batch_norm_legit.no_stats, devices=("cpu",))
def batch_norm_of_input(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The same file: without running statistics it always trains."""
    return batch_norm(input, weight, bias, None, None, *rest)  # type: ignore[no-any-return]


@register_meta_kernel(aten._batch_norm_with_update.default, devices=("cpu",))
def batch_norm_with_update(
    input: Tensor, weight: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same file."""
    output, _, _, reserve = aten._batch_norm_with_update.default(input, weight, *rest)
    statistics = _statistics_like(input, weight, (input.shape[1],))
    return output, statistics, torch.empty_like(statistics), reserve


@register_meta_kernel(aten.native_layer_norm.default, devices=("cpu",))
def layer_norm(
    input: Tensor, shape: list[int], weight: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """aten/src/ATen/native/layer_norm.cpp: the statistics are as in batch norm."""
    output, mean, deviation = aten.native_layer_norm.default(input, shape, weight, *rest)
    output = torch.empty_like(output, memory_format=torch.contiguous_format)
    if mean.numel() == 0 and mean.dim() == 1:
        return output, mean, deviation
    statistics = _statistics_like(input, weight, mean.shape)
    return output, statistics, torch.empty_like(statistics)


@register_meta_kernel(aten.native_group_norm.default, devices=("cpu",))
def group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, *sizes: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """aten/src/ATen/native/group_norm.cpp: the CPU keeps the input's memory format."""
    batch, _channels, _area, groups, _eps = sizes
    output = torch.empty_like(input, memory_format=kernels.memory_format_of(input))
    statistics = _statistics_like(input, weight, (batch, groups))
    return output, statistics, torch.empty_like(statistics)


def _statistics_like(input: Tensor, weight: Tensor | None, shape: Any) -> Tensor:
    return input.new_empty(shape, dtype=input.dtype if weight is None else weight.dtype)


@register_meta_kernel(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def sdpa_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_args: Any, **_options: Any
) -> tuple[Tensor, ...]:
    """aten/src/ATen/native/transformers/attention.cpp: the order is batch, length, heads, dim."""
    return tuple(t.new_empty(t.transpose(1, 2).shape).transpose(1, 2) for t in (query, key, value))


@register_meta_kernel(
    aten._ctc_loss_backward.default,
    aten._ctc_loss_backward.Tensor,
    aten.fractional_max_pool3d_backward.default,
    aten.multi_margin_loss_backward.default,
    aten.multilabel_margin_loss_backward.default,
)
def gradient_of_second(grad: Tensor, input: Tensor, *_args: Any, **_options: Any) -> Tensor:
    """A gradient has the shape of the tensor that it belongs to."""
    return torch.empty_like(input)


@register_meta_kernel(
    aten._fused_sgd_.default,
    aten._fused_sgd_.tensor_lr,
    aten._fused_adagrad_.default,
    aten._fused_adagrad_.tensor_lr,
)
def fused_step(*_args: Any, **_options: Any) -> None:
    """An optimizer's step writes in place and changes no metadata."""


@register_meta_kernel(aten.multilabel_margin_loss_forward.default, devices=("cpu",))
def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/LossMultiLabelMargin.cpp: one row gives one number, whatever the
    reduction is.
    """
    loss, is_target = aten.multilabel_margin_loss_forward.default(input, target, reduction)
    return loss.new_empty(()) if input.dim() <= 1 else loss, is_target


@register_meta_kernel(aten.convolution.default, devices=("cpu",))
def convolution(input: Tensor, weight: Tensor, *args: Any, **options: Any) -> Tensor:
    """aten/src/ATen/native/ConvUtils.h, mkldnn_conv_use_channels_last: the memory format of the
    input or of the weight decides.
    """
    output: Tensor = aten.convolution.default(input, weight, *args, **options)
    formats = {kernels.memory_format_of(t) for t in (input, weight)}
    if torch.channels_last in formats:
        return output.to(memory_format=torch.channels_last)
    if torch.channels_last_3d in formats and _takes_mkldnn(input, weight, groups=args[-1]):
        return output.to(memory_format=torch.channels_last_3d)
    return output


def _takes_mkldnn(input: Tensor, weight: Tensor, *, groups: int) -> bool:
    """Convolution.cpp, use_mkldnn: the other kernel for three dims gives one layout only."""
    large = input.shape[0] > 1 or input.numel() > 20_480 or min(weight.shape[-2:]) > 3
    return input.dtype != torch.float64 and (groups > 1 or large)


@register_meta_kernel(aten._grouped_mm.default)
def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """aten/src/ATen/native/GroupedMMUtils.h: rows are padded to 16 bytes. Any dtype is
    accepted: where there is no kernel for it, there is a fallback.
    """
    groups = (offs.shape[0],) if offs is not None and a.dim() == b.dim() == 2 else ()
    batch = a.shape[:1] if a.dim() == b.dim() == 3 else groups
    rows, columns = a.shape[-2], b.shape[-1]
    alignment = 16 // a.element_size()
    width = -(-columns // alignment) * alignment
    padded = a.new_empty((*batch, rows, width), dtype=out_dtype or a.dtype)
    return padded[..., :columns]


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
