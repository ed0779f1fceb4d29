"""Meta kernels of layers: embeddings, norms, convolutions, pooling and attention.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel is run; each names the C++ file that it follows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import MetaKernel, register_meta_kernel
from torchfake._torch import kernels

aten = torch.ops.aten


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
    _, _, _, reserve = aten._batch_norm_with_update.default(input, weight, *rest)
    output = torch.empty_like(input, memory_format=kernels.memory_format_of(input))
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


@register_meta_kernel(aten.convolution.default, devices=("cpu",))
def convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *sizes: Any) -> Tensor:
    """aten/src/ATen/native/ConvUtils.h, mkldnn_conv_use_channels_last: the memory format of the
    input or of the weight decides.
    """
    if weight.dim() == input.dim() == 3:
        return _convolution_of_rows(convolution, input, weight, bias, *sizes)
    output: Tensor = aten.convolution.default(input, weight, bias, *sizes)
    formats = {kernels.memory_format_of(t) for t in (input, weight)}
    if torch.channels_last in formats:
        return output.to(memory_format=torch.channels_last)
    stride, _, _, transposed, output_padding, groups = sizes
    is_refused = transposed and _transposed_without_mkldnn(input, stride, output_padding, groups)
    if (
        torch.channels_last_3d in formats
        and _takes_mkldnn(input, weight, groups)
        and not is_refused
    ):
        return output.to(memory_format=torch.channels_last_3d)
    return output


@register_meta_kernel(aten.convolution.default, devices=("cuda",))
def cudnn_convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *sizes: Any) -> Tensor:
    """The same for cuDNN. Torch's meta kernel lays all results out contiguously."""
    if weight.dim() == input.dim() == 3:
        return _convolution_of_rows(cudnn_convolution, input, weight, bias, *sizes)
    output: Tensor = aten.convolution.default(input, weight, bias, *sizes)
    return output.to(memory_format=_cudnn_format(input, weight))


@register_meta_kernel(aten.convolution_backward.default, devices=("cuda",))
def cudnn_convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, _bias_sizes: list[int] | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    """aten/src/ATen/native/Convolution.cpp: both gradients have the format of the convolution."""
    output_mask = rest[-1]
    last = _cudnn_format(input, weight)
    grads = [
        t.new_empty(t.shape).to(memory_format=last) if wanted else None
        for t, wanted in zip((input, weight), output_mask, strict=False)
    ]
    return (*grads, grad_output.new_empty(grad_output.shape[1]) if output_mask[2] else None)


def _cudnn_format(input: Tensor, weight: Tensor) -> torch.memory_format:
    """aten/src/ATen/native/ConvUtils.h, cudnn_conv_suggest_memory_format."""
    is_empty = 0 in input.shape[:2]  # computed without cuDNN
    if is_empty or torch.float64 in (input.dtype, weight.dtype):
        return torch.contiguous_format
    formats = {kernels.memory_format_of(t) for t in (input, weight)}
    formats.discard(torch.contiguous_format)
    return formats.pop() if formats else torch.contiguous_format


def _convolution_of_rows(
    kernel: MetaKernel,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """One dim is computed as two of a contiguous input (Convolution.cpp, view1d_as_2d)."""
    sizes = [1, *stride], [0, *padding], [1, *dilation], transposed, [0, *output_padding], groups
    images = input.contiguous().unsqueeze(2), weight.unsqueeze(2)
    output: Tensor = kernel(*images, bias, *sizes)
    return output.squeeze(2)


def _takes_mkldnn(input: Tensor, weight: Tensor, groups: int) -> bool:
    """Convolution.cpp, use_mkldnn: the other kernel for three dims gives one layout only."""
    batch = input.shape[0]
    large = batch > 1 or input.shape[:4].numel() > 20_480 or min(weight.shape[-2:]) > 3
    return input.dtype != torch.float64 and (groups > 1 or large)


def _transposed_without_mkldnn(
    input: Tensor, stride: list[int], output_padding: list[int], groups: int
) -> bool:
    """The same function: depthwise, or with an output padding as large as the stride."""
    steps = stride * (len(output_padding) // len(stride))
    is_big = any(pad >= step for pad, step in zip(output_padding, steps, strict=False))
    return is_big or (groups > 1 and input.shape[1] == groups)


def _keeps_format(func: Any) -> MetaKernel:
    """aten/src/ATen/native/ReflectionPad.cpp, ReplicationPadding.cpp and ChanelShuffle.cpp: the CPU
    keeps the memory format of the input.
    """

    def kernel(input: Tensor, *args: Any) -> Tensor:
        output: Tensor = func(input, *args)
        return output.to(memory_format=kernels.memory_format_of(input))

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
    """aten/src/ATen/native/DilatedMaxPool3d.cpp: one image whose channels lie last keeps that."""
    results: tuple[Tensor, Tensor] = aten.max_pool3d_with_indices.default(input, *window)
    batch = input.unsqueeze(0)
    last = torch.channels_last_3d
    if input.dim() == 5 or batch.is_contiguous() or not batch.is_contiguous(memory_format=last):
        return results
    like = [torch.empty_like(t.unsqueeze(0), memory_format=last).squeeze(0) for t in results]
    return like[0], like[1]


@register_meta_kernel(aten._transformer_encoder_layer_fwd.default)
def transformer_encoder_layer(src: Tensor, *_weights: Any, **_options: Any) -> Tensor:
    """aten/src/ATen/native/transformers/transformer.cpp: contiguous, unless it is empty."""
    return src.clone() if src.numel() == 0 else src.new_empty(src.shape)


def whole_convolution(*args: Any) -> Tensor:
    """aten/src/ATen/native/Convolution.cpp: what follows the groups chooses a kernel alone."""
    result: Tensor = aten.convolution.default(*args[:9])
    return result


if not kernels.has_meta_kernel_of_whole_convolution():
    register_meta_kernel(aten._convolution.default)(whole_convolution)
