"""Meta kernels of layers: embeddings, norms, pooling and attention.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel runs; each docstring names the C++ file that is followed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import MetaKernel, register_meta_kernel
from torchfake._torch import cpp_metadata, kernels

aten = torch.ops.aten
_Parameters = tuple[Tensor | None, ...]


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
    """aten/src/ATen/native/EmbeddingBag.cpp: the tensors kept for the backward pass, without
    positions if FBGEMM computes the sums.
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
    """aten/src/ATen/native/EmbeddingBag.cpp: sums have bag sizes for all offsets, even the last."""
    output, positions, bag_sizes, maxima = embedding_bag(weight, indices, offsets, *args)
    if len(args) < 2 or args[1] == _SUM:
        bag_sizes = bag_sizes.new_empty(offsets.shape[0])
        maxima = torch.empty_like(bag_sizes)
    return output, positions, bag_sizes, maxima


@register_meta_kernel(aten.max_unpool2d.default, devices=("cpu",))
def max_unpool2d(input: Tensor, indices: Tensor, output_size: list[int]) -> Tensor:
    """aten/src/ATen/native/MaxUnpooling.cpp: the CPU keeps the input's memory format."""
    torch._check(
        input.dim() in (3, 4),
        lambda: (
            "Input to max_unpooling2d should be a 3d or 4d Tensor, but got a tensor with "
            f"{input.dim()} dimensions."
        ),
    )
    for dim, length in enumerate(input.shape[1:], 1):
        torch._check(
            length > 0,
            lambda dim=dim: (
                "max_unpooling2d_forward_out_cpu(): Expected input to have non-zero size for "
                f"non-batch dimensions, but got {list(input.shape)} with dimension {dim} being "
                "empty."
            ),
        )
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
    """aten/src/ATen/native/Normalization.cpp: the CPU saves statistics in the dtype of parameters
    and running statistics, and saves none in evaluation, where they are arguments.
    """
    mean, variance, training, *_ = rest
    _check_has_elements(input, training)
    output = torch.empty_like(input, memory_format=_packed_format(input, weight, bias))
    parameters = weight, bias, mean, variance
    statistics = _statistics_like(input, parameters, (input.shape[1] if training else 0,))
    return output, statistics, torch.empty_like(statistics)


@register_meta_kernel(aten._native_batch_norm_legit.no_stats, devices=("cpu",))
def batch_norm_of_input(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm without running statistics, which always normalizes as in training."""
    return batch_norm(input, weight, bias, None, None, *rest)  # type: ignore[no-any-return]


@register_meta_kernel(aten._batch_norm_with_update.default, devices=("cpu",))
def batch_norm_with_update(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """aten/src/ATen/native/Normalization.cpp: statistics are in the parameters' dtype."""
    aten._batch_norm_with_update.default(input, weight, bias, *rest)  # checks the sizes
    _check_has_elements(input, True)
    output = torch.empty_like(input, memory_format=_packed_format(input, weight, bias))
    statistics = _statistics_like(input, (weight, bias, *rest[:2]), (input.shape[1],))
    reserve = input.new_empty(0, dtype=torch.uint8)
    return output, statistics, torch.empty_like(statistics), reserve


def _check_has_elements(input: Tensor, is_training: bool) -> None:
    """The same file: statistics of no elements are refused."""
    torch._check(
        input.numel() > 0 or not is_training,
        lambda: (
            "input tensor must have at least one element, but got input_sizes = "
            f"{list(input.shape)}"
        ),
    )


def _packed_format(input: Tensor, *others: Tensor | None) -> torch.memory_format:
    """suggest_memory_format_contig in the same file: what is contiguous stays so, though its
    strides may be those of channels last, too.
    """
    formats = (torch.contiguous_format, torch.channels_last_3d, torch.channels_last)
    if all(t is None or t.is_contiguous() for t in others):
        for memory_format in formats:
            if input.is_contiguous(memory_format=memory_format):
                return memory_format
    return kernels.memory_format_of(input)


@register_meta_kernel(aten.native_batch_norm_backward.default, devices=("cpu",))
def batch_norm_backward(
    grad: Tensor, input: Tensor, weight: Tensor | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    """The same file."""
    return _batch_norm_gradients(grad, input, (weight, *rest[:4]), rest[-1])


@register_meta_kernel(aten.batch_norm_backward.default, devices=("cpu",))
def batch_norm_with_update_backward(
    grad: Tensor, input: Tensor, weight: Tensor | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    """The same file."""
    return _batch_norm_gradients(grad, input, (weight, *rest[:4]), rest[-2])


def _batch_norm_gradients(
    grad: Tensor, input: Tensor, parameters: _Parameters, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    of_input, *of_parameters = _norm_gradients(input, parameters, wanted)
    is_alike = kernels.memory_format_of(grad) == kernels.memory_format_of(input)
    formats = (torch.contiguous_format, torch.channels_last_3d, torch.channels_last)
    is_packed = any(grad.is_contiguous(memory_format=each) for each in formats)
    if of_input is not None and is_alike and is_packed:
        of_input = torch.empty_like(input, memory_format=_packed_format(input))
    return of_input, *of_parameters


def _norm_gradients(
    input: Tensor, parameters: _Parameters, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients of a norm: one like the input, one number for each channel and parameter."""
    memory_format = kernels.memory_format_of(input)
    of_input = torch.empty_like(input, memory_format=memory_format) if wanted[0] else None
    of_parameters = [
        _statistics_like(input, parameters, (input.shape[1],)) if each else None
        for each in wanted[1:]
    ]
    return of_input, *of_parameters


@register_meta_kernel(aten.native_layer_norm.default, devices=("cpu",))
def layer_norm(input: Tensor, shape: list[int], *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """aten/src/ATen/native/layer_norm.cpp: statistics are in the parameters' dtype."""
    output, mean, deviation = aten.native_layer_norm.default(input, shape, *rest)
    output = torch.empty_like(output, memory_format=torch.contiguous_format)
    if mean.numel() == 0 and mean.dim() == 1:
        return output, mean, deviation
    statistics = _statistics_like(input, rest[:2], mean.shape)
    return output, statistics, torch.empty_like(statistics)


@register_meta_kernel(aten.native_group_norm.default, devices=("cpu",))
def group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, *sizes: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """aten/src/ATen/native/group_norm.cpp: the CPU keeps the input's memory format."""
    memory_format = kernels.memory_format_of(input)
    torch._check(
        cpp_metadata.group_norm_packs_its_input()
        or input.is_contiguous(memory_format=memory_format),
        lambda: "Expected X.is_contiguous(memory_format) to be true, but got false.",
    )
    batch, channels, area, groups, _eps = sizes
    torch._check(
        input.numel() in (0, batch * channels * area),
        lambda: "Expected X.numel() == N * C * HxW to be true, but got false.",
    )
    torch._check(groups > 0, lambda: f"Expected num groups to be greater than 0, got {groups}")
    torch._check(
        channels % groups == 0,
        lambda: (
            "Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(input.shape)} and num_groups={groups}"
        ),
    )
    checked = input.new_empty((batch, channels, area) if input.numel() else input.shape)
    args = checked, weight, bias, *sizes
    cpp_metadata.compose_below_autograd(aten.native_group_norm.default, args, {})  # the checks
    output = torch.empty_like(input, memory_format=memory_format)
    statistics = _statistics_like(input, (weight, bias), (batch, groups))
    return output, statistics, torch.empty_like(statistics)


@register_meta_kernel(aten.native_group_norm_backward.default, devices=("cpu",))
def group_norm_backward(
    grad: Tensor, input: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    """The same file."""
    _batch, channels, _area, _groups, wanted = rest
    parameters = weight, mean, deviation
    of_input, *_ = _norm_gradients(input, parameters, wanted)
    if wanted[0] and input.numel() and cpp_metadata.group_norm_packs_its_input():
        packed = input.contiguous(memory_format=kernels.memory_format_of(input))
        of_input = torch.empty_like(packed)
    of_scale, of_shift = (
        _statistics_like(input, parameters, (channels,)) if each else None for each in wanted[1:]
    )
    return of_input, of_scale, of_shift


def _statistics_like(input: Tensor, parameters: _Parameters, shape: Any) -> Tensor:
    """aten/src/ATen/native/cpu/mixed_data_type.h: in the dtype of the first parameter there is."""
    dtype = next((each.dtype for each in parameters if each is not None), input.dtype)
    return input.new_empty(shape, dtype=dtype)


@register_meta_kernel(aten._scaled_dot_product_flash_attention_for_cpu.default)
def sdpa(query: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/transformers/attention.cpp: the result lies as the query."""
    torch._check(
        all(tensor.dim() == 4 for tensor in (query, *args[:2])),
        lambda: (
            "scaled_dot_product_attention_flash_attention: Accept only 4 dims inputs shape of "
            "{B, H, T, K}"
        ),
    )
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    return torch.empty_like(query), attention(query, *args, **options)[1]


@register_meta_kernel(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def sdpa_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_args: Any, **_options: Any
) -> tuple[Tensor, ...]:
    """The same file: gradients are laid out as batch, length, heads, dim."""
    return tuple(t.new_empty(t.transpose(1, 2).shape).transpose(1, 2) for t in (query, key, value))


def _keeps_format(func: Any) -> MetaKernel:
    """aten/src/ATen/native/ReflectionPad.cpp, ReplicationPadding.cpp and ChanelShuffle.cpp: the CPU
    keeps the memory format of the input.
    """

    def kernel(input: Tensor, *args: Any) -> Tensor:
        size = func(input, *args).shape
        if func is aten.channel_shuffle.default and not input.numel():
            return aten.alias.default(input)  # type: ignore[no-any-return]
        return input.new_empty(size).to(memory_format=kernels.memory_format_of(input))

    return kernel


for _func in (
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
    aten.channel_shuffle.default,
):
    register_meta_kernel(_func, devices=("cpu",))(_keeps_format(_func))


@register_meta_kernel(aten.max_pool3d_with_indices.default, devices=("cpu",))
def max_pool3d(input: Tensor, *window: Any) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/DilatedMaxPool3d.cpp: one image whose channels lie last keeps that. One
    that seems to be a batch of images of two dims has no kernel.
    """
    results: tuple[Tensor, Tensor] = aten.max_pool3d_with_indices.default(input, *window)
    if not _is_volume_with_channels_last(input):
        return results
    last = torch.channels_last_3d
    like = [torch.empty_like(t.unsqueeze(0), memory_format=last).squeeze(0) for t in results]
    return like[0], like[1]


def _is_volume_with_channels_last(input: Tensor) -> bool:
    """Whether `input` is one image of three dims whose channels lie last."""
    batch = input.unsqueeze(0)
    is_batch = input.dim() == 5 or batch.is_contiguous()
    if not is_batch and batch.is_contiguous(memory_format=torch.channels_last_3d):
        return True
    torch._check(
        kernels.memory_format_of(input) != torch.channels_last,
        lambda: "Unsupported memory format. Supports only ChannelsLast3d, Contiguous",
    )
    return False


@register_meta_kernel(aten.max_pool3d_with_indices_backward.default, devices=("cpu",))
def max_pool3d_backward(grad: Tensor, input: Tensor, *window: Any) -> Tensor:
    """The same file."""
    if _is_volume_with_channels_last(input) and _is_volume_with_channels_last(grad):
        return torch.empty_like(input.unsqueeze(0), memory_format=torch.channels_last_3d).squeeze(0)
    return torch.empty_like(input, memory_format=kernels.memory_format_of(input))


@register_meta_kernel(aten._transformer_encoder_layer_fwd.default)
def transformer_encoder_layer(src: Tensor, *_weights: Any, **_options: Any) -> Tensor:
    """aten/src/ATen/native/transformers/transformer.cpp: contiguous, unless the input is empty."""
    return src.clone() if src.numel() == 0 else src.new_empty(src.shape)
