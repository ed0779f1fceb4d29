"""Meta kernels of convolutions, their gradients, and of pixels that are brought together.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel is run; each names the C++ file that it follows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import MetaKernel, register_meta_kernel
from torchfake._torch import cpp_metadata, dispatcher, kernels

aten = torch.ops.aten


@register_meta_kernel(aten.convolution.default, devices=("cpu",))
def convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *sizes: Any) -> Tensor:
    """aten/src/ATen/native/ConvUtils.h, mkldnn_conv_use_channels_last: the memory format of the
    input or of the weight decides.
    """
    kernels.check_convolution(input, weight, bias, *sizes)
    if weight.dim() == input.dim() == 3:
        return _convolution_of_rows(convolution, input, weight, bias, *sizes)
    output: Tensor = aten.convolution.default(input, weight, bias, *sizes)
    torch._check(
        0 not in output.shape[2:]
        or 0 in input.shape
        or (sizes[3] and cpp_metadata.convolution_takes_mkldnn(input, weight, *sizes)),
        lambda: f"Calculated output size: {tuple(output.shape)}. Output size is too small",
    )
    if 0 in input.shape[:2]:
        return _of_no_images(input, weight).view(output.shape)
    formats = {kernels.memory_format_of(t) for t in (input, weight)}
    if torch.channels_last in formats:
        return output.to(memory_format=torch.channels_last)
    is_last = torch.channels_last_3d in formats
    if is_last and cpp_metadata.convolution_takes_mkldnn(input, weight, *sizes):
        return output.to(memory_format=torch.channels_last_3d)
    return output


def _of_no_images(input: Tensor, weight: Tensor) -> Tensor:
    """aten/src/ATen/native/Convolution.cpp, ConvBackend::Empty: a product, for its gradient."""
    numbers = weight.reshape(-1)
    return input * numbers[0] if input.shape[1] else input.view(-1) * numbers


@register_meta_kernel(aten.convolution_backward.default, devices=("cpu",))
def convolution_backward(
    grad: Tensor, input: Tensor, weight: Tensor, bias_sizes: list[int] | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    """The same: gradients have the memory format of the kernel's result."""
    stride, padding, dilation, transposed, output_padding, groups, wanted = rest
    if 0 in input.shape[:2]:  # zeros, without a kernel
        of_bias = input.new_empty(bias_sizes or (0,)) if wanted[2] else None
        like = [
            torch.empty_like(t) if w else None
            for t, w in zip((input, weight), wanted, strict=False)
        ]
        return *like, of_bias
    if weight.dim() == input.dim() == 3:
        images = grad.unsqueeze(2), input.contiguous().unsqueeze(2), weight.unsqueeze(2)
        sizes = [1, *stride], [0, *padding], [1, *dilation], transposed, [0, *output_padding]
        *of_images, of_bias = convolution_backward(*images, bias_sizes, *sizes, groups, wanted)
        return *(None if t is None else t.squeeze(2) for t in of_images), of_bias
    grads: tuple[Tensor | None, ...] = aten.convolution_backward.default(
        grad, input, weight, bias_sizes, *rest
    )
    is_mkldnn = cpp_metadata.convolution_takes_mkldnn(input, weight, *rest[:-1])
    if input.dim() == 4 and wanted[1] and not is_mkldnn:
        return grads[0], _gradient_of_weight(input, weight), grads[2]
    if input.dim() < 5 or is_mkldnn:
        return grads
    return tuple(None if t is None else t.new_empty(t.shape) for t in grads)


def _gradient_of_weight(input: Tensor, weight: Tensor) -> Tensor:
    """aten/src/ATen/native/ConvolutionMM2d.cpp: one element, or one channel, is contiguous in each
    memory format, so the weight is copied to that of the convolution only if it has none.
    """
    formats = {kernels.memory_format_of(t) for t in (input, weight)}
    last = torch.channels_last
    packed = weight.contiguous(memory_format=last if last in formats else torch.contiguous_format)
    return weight.new_empty(weight.shape).to(memory_format=kernels.memory_format_of(packed))


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


def whole_convolution(*args: Any) -> Tensor:
    """aten/src/ATen/native/Convolution.cpp: what follows the groups chooses a kernel alone."""
    result: Tensor = aten.convolution.default(*args[:9])
    return result


if not kernels.has_meta_kernel_of_whole_convolution():
    register_meta_kernel(aten._convolution.default)(whole_convolution)


@register_meta_kernel(aten.col2im.default)
def col2im(input: Tensor, output_size: list[int], kernel_size: list[int], *_window: Any) -> Tensor:
    """aten/src/ATen/native/Col2Im.cpp: the memory of the input's size, if that is larger. Torch's
    Python keeps the padding of an empty batch.
    """
    aten.col2im.default(input, output_size, kernel_size, *_window)  # checks the sizes
    *batch, rows, _ = input.shape
    channels = rows // (kernel_size[0] * kernel_size[1])
    return input.new_empty(input.shape).resize_((*batch, channels, *output_size))


@register_meta_kernel(aten.im2col.default)
def im2col(input: Tensor, kernel_size: list[int], *window: Any) -> Tensor:
    """aten/src/ATen/native/Im2Col.cpp: the memory of the input's size, if that is larger."""
    shape = aten.im2col.default(input, kernel_size, *window).shape
    return input.new_empty(input.shape).resize_(shape)


@register_meta_kernel(aten.pixel_shuffle.default, devices=("cpu",))
def pixel_shuffle(input: Tensor, factor: int) -> Tensor:
    """aten/src/ATen/native/PixelShuffle.cpp: the memory format that the input suggests."""
    _check_pixels(aten.pixel_shuffle.default, input, factor)
    *batch, channels, height, width = input.shape
    size = *batch, channels // factor**2, height * factor, width * factor
    return input.new_empty(size).to(memory_format=kernels.memory_format_of(input))


@register_meta_kernel(aten.pixel_unshuffle.default, devices=("cpu",))
def pixel_unshuffle(input: Tensor, factor: int) -> Tensor:
    """The same file: of an empty input, a copy of the same size."""
    _check_pixels(aten.pixel_unshuffle.default, input, factor)
    if not input.numel():
        return torch.empty_like(input)
    *batch, channels, height, width = input.shape
    size = *batch, channels * factor**2, height // factor, width // factor
    return input.new_empty(size).to(memory_format=kernels.memory_format_of(input))


def _check_pixels(func: Any, input: Tensor, factor: int) -> None:
    """Raise what C++ raises for these sizes, of which it looks at the last three, and formats."""
    size = (0, *input.shape[-3:]) if input.dim() > 2 else (0,) * input.dim()
    with dispatcher.as_eager():
        func(torch.empty(size, device="cpu"), factor)
    torch._check(
        not input.numel() or kernels.memory_format_of(input) != torch.channels_last_3d,
        lambda: "Unsupported memory format. Supports only ChannelsLast, Contiguous",
    )
