"""Kernels of layers that C++ would decompose by the wrapper's device: norms, losses, pooling.

Input: a call of one of these operators with a fake among its tensors. Output: the call's result,
from operators that the dispatcher then sees one by one. Invariant: a kernel asks a fake for its own
device and memory format, never the C++ wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._torch import autograd, cpp_metadata, dispatcher, kernels

aten = torch.ops.aten


def ctc_loss(
    redispatch: Callable[..., Any],
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *rest: Any,
) -> Any:
    """CTC loss with lengths on the CPU: C++ divides by plain lengths as numbers, but by lengths of
    a subclass as a tensor on the CPU.
    """
    target_lengths = target_lengths.to(log_probs.device)
    return redispatch(log_probs, targets, input_lengths, target_lengths, *rest)


def group_norm(
    redispatch: Callable[..., Any],
    tensor: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """``group_norm`` on the CPU, which has a kernel for channels last: before 2.15, C++ copies
    the input for it, and asks for the device.
    """
    memory_format = kernels.memory_format_of(tensor)
    is_valid = num_groups > 0 and tensor.dim() > 1 and tensor.shape[1] % num_groups == 0
    is_copied = not cpp_metadata.group_norm_packs_its_input()
    if tensor.device.type != "cpu" or not is_valid or not is_copied:
        return redispatch(tensor, num_groups, weight, bias, eps, cudnn_enabled)
    tensor = tensor.contiguous(memory_format=memory_format)
    if memory_format == torch.contiguous_format:
        return redispatch(tensor, num_groups, weight, bias, eps, cudnn_enabled)
    scale, shift = (None if t is None else t.contiguous() for t in (weight, bias))
    sizes = tensor.shape[0], tensor.shape[1], tensor.shape[2:].numel()
    return aten.native_group_norm.default(tensor, scale, shift, *sizes, num_groups, eps)[0]


def native_group_norm_backward(
    redispatch: Callable[..., Any], grad: torch.Tensor, tensor: torch.Tensor, *args: Any
) -> Any:
    """The backward pass of ``group_norm``. C++ makes gradient and input contiguous unless the
    gradient is on the CPU. (Where the input needs no gradient, torch 2.13's channels-last kernel
    crashes the process; this kernel does not.)
    """
    *_, wanted = args
    if not wanted[0] or grad.device.type != "cpu":
        return redispatch(grad, tensor, *args)
    saved = autograd.saved_by_running_node_of("NativeGroupNormBackward0", "input")
    if saved and saved[0].shape == tensor.shape:
        memory_format = kernels.memory_format_of(saved[0])
        grad = grad.contiguous(memory_format=memory_format)
        tensor = saved[0].contiguous(memory_format=memory_format)
    return redispatch(grad, tensor, *args)


def native_channel_shuffle(
    redispatch: Callable[..., Any], tensor: torch.Tensor, groups: int
) -> Any:
    """Channel shuffle on the CPU, whose kernel makes a copy and keeps the memory format. C++ would
    decompose it into views, of which some are copied.
    """
    if tensor.device.type != "cpu":
        return redispatch(tensor, groups)
    memory_format = kernels.memory_format_of(tensor)
    return redispatch(tensor, groups).clone(memory_format=memory_format)


def max_pool1d(
    redispatch: Callable[..., Any], tensor: torch.Tensor, *window: Any, **named: Any
) -> Any:
    """``max_pool1d`` without a gradient, contiguous and no view on the CPU, dims of length one
    included: C++ takes a row of the kernel of two dims for subclasses.
    """
    if tensor.device.type != "cpu" or autograd.needs_gradient(tensor):
        return redispatch(tensor, *window, **named)
    with dispatcher.views_without_bases():
        result: torch.Tensor = redispatch(tensor.contiguous(), *window, **named)
        return result.view(-1).view(result.shape)


def transformer_encoder_layer(
    redispatch: Callable[..., Any], src: torch.Tensor, dim: int, num_heads: int, *args: Any
) -> Any:
    """aten/src/ATen/native/transformers/transformer.cpp: the fused kernel of
    ``nn.TransformerEncoderLayer``, composed under autocast, which casts the operators that the
    kernel calls but not the kernel itself.
    """
    if src.is_nested or not src.numel() or not torch.is_autocast_enabled(src.device.type):
        return redispatch(src, dim, num_heads, *args)
    projections, (use_gelu, norm_first, eps, *weights), mask = args[:4], args[4:15], args[15:]
    mask, mask_type = (*mask, None, None)[:2]

    def norm(x: torch.Tensor, i: int) -> torch.Tensor:
        return torch.layer_norm(x, (dim,), weights[i], weights[i + 1], eps)

    x = norm(src, 0) if norm_first else src
    attend: Callable[..., Any] = torch._native_multi_head_attention
    x = attend(x, x, x, dim, num_heads, *projections, mask, False, True, mask_type)[0].add_(src)
    x = x if norm_first else norm(x, 0)
    rows = (norm(x, 2) if norm_first else x).reshape(-1, dim)
    hidden = torch._addmm_activation(weights[5], rows, weights[4].t(), use_gelu=use_gelu)
    hidden = hidden.view(*x.shape[:-1], -1)
    result = torch.nn.functional.linear(hidden, weights[6], weights[7]).add_(x)
    return result if norm_first else norm(result, 2)
