"""Meta kernels of losses, their gradients and optimizer steps.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel runs; each docstring names the C++ file that is followed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import register_meta_kernel

aten = torch.ops.aten


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
    target; if the lengths are unknown, from the longest possible target.
    """
    batch = log_probs.shape[1]
    if isinstance(target_lengths, Tensor):
        longest = targets.shape[1] if targets.dim() > 1 else targets.shape[0]
    else:
        longest = max(target_lengths, default=0)
    table = log_probs.new_empty((batch, log_probs.shape[0], 2 * longest + 1))
    return log_probs.new_empty(batch), table


@register_meta_kernel(
    aten._ctc_loss_backward.default,
    aten._ctc_loss_backward.Tensor,
    aten.mse_loss_backward.default,
    aten.huber_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.fractional_max_pool3d_backward.default,
    aten.multi_margin_loss_backward.default,
    aten.multilabel_margin_loss_backward.default,
)
def gradient_of_second(grad: Tensor, input: Tensor, *_args: Any, **_options: Any) -> Tensor:
    """A gradient has the shape of the tensor that it belongs to, and is contiguous."""
    return torch.empty_like(input, memory_format=torch.contiguous_format)


@register_meta_kernel(aten.huber_loss.default)
def huber_loss(input: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """aten/src/ATen/native/Loss.cpp: what is not reduced is ``empty_like``."""
    torch.broadcast_shapes(input.shape, target.shape)
    return torch.empty_like(input) if reduction == 0 else input.new_empty(())


@register_meta_kernel(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """aten/src/ATen/native/Loss.cpp: a reduced loss is the first number of the others' memory."""
    loss = aten.binary_cross_entropy.default(input, target, weight, reduction)
    return loss if reduction == 0 else torch.empty_like(input).resize_(loss.shape)


@register_meta_kernel(aten.nll_loss2d_backward.default, devices=("cpu",))
def nll_loss2d_backward(grad: Tensor, input: Tensor, *args: Any) -> Tensor:
    """aten/src/ATen/native/LossNLL2d.cpp: for the gradient of channels last there is no kernel."""
    result = torch.empty_like(input)
    torch._check(result.is_contiguous(), lambda: "grad_input must be contiguous")
    aten.nll_loss2d_backward.default(grad, input, *args)  # checks the rest
    return result


@register_meta_kernel(
    aten._fused_adam_.tensor_lr,
    aten._fused_adamw_.tensor_lr,
    aten._fused_sgd_.default,
    aten._fused_sgd_.tensor_lr,
    aten._fused_adagrad_.default,
    aten._fused_adagrad_.tensor_lr,
)
def fused_step(*_args: Any, **_options: Any) -> None:
    """An optimizer's step writes in place and changes no metadata."""


@register_meta_kernel(aten.nll_loss2d_forward.default, devices=("cpu",))
def nll_loss2d(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/LossNLL2d.cpp: an unreduced loss is contiguous."""
    options = weight, reduction, ignore_index
    loss, total = aten.nll_loss2d_forward.default(input, target, *options)
    return loss.contiguous(), total


@register_meta_kernel(aten.multilabel_margin_loss_forward.default, devices=("cpu",))
def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/LossMultiLabelMargin.cpp: one row gives one number, whatever the
    reduction is.
    """
    loss, is_target = aten.multilabel_margin_loss_forward.default(input, target, reduction)
    return loss.new_empty(()) if input.dim() <= 1 else loss, is_target


# Floats that are rounded to the grid of an integer dtype while a model is trained, and stay floats:
# each result is ``empty_like`` of the argument that it belongs to
# (aten/src/ATen/native/quantized/FakeQuantPerTensorAffine.cpp and FakeQuantPerChannelAffine.cpp).


@register_meta_kernel(
    aten.fake_quantize_per_tensor_affine_cachemask.default,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
    aten.fake_quantize_per_channel_affine_cachemask.default,
)
def rounded_with_mask(self: Tensor, *_args: Any, **_named: Any) -> tuple[Tensor, Tensor]:
    """The rounded tensor, and for the gradient a mask of the elements inside the range."""
    return torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)


@register_meta_kernel(
    aten._fake_quantize_learnable_per_tensor_affine.default,
    aten._fake_quantize_learnable_per_channel_affine.default,
)
def rounded(self: Tensor, *_args: Any, **_named: Any) -> Tensor:
    return torch.empty_like(self)


@register_meta_kernel(
    aten._fake_quantize_learnable_per_tensor_affine_backward.default,
    aten._fake_quantize_learnable_per_channel_affine_backward.default,
)
def rounded_backward(
    _grad: Tensor, self: Tensor, scale: Tensor, zero_point: Tensor, *_args: Any, **_named: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(self), torch.empty_like(scale), torch.empty_like(zero_point)


@register_meta_kernel(aten._fused_moving_avg_obs_fq_helper.default)
def observed_and_rounded(
    self: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/quantized/cpu/fused_obs_fake_quant.cpp: the first call of an observer of
    channels, even of one that is off, gives what it writes an element for each of them.
    """
    if per_row_fake_quant and not running_min.numel():
        for written in (running_min, running_max, scale, zero_point):
            written.resize_(self.shape[ch_axis])
    made: tuple[Tensor, Tensor] = rounded_with_mask(self)
    return made
