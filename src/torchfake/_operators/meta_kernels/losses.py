"""Meta kernels of losses, their gradients and optimizer steps.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel is run; each names the C++ file that it follows.
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
    target; where the lengths are not known, from the longest possible one.
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


@register_meta_kernel(aten.nll_loss2d_forward.default, devices=("cpu",))
def nll_loss2d(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/LossNLL2d.cpp: what is not reduced is contiguous."""
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
