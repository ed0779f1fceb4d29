"""Meta kernels of operators that round floats to the grid of an integer dtype, and keep floats.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel is run.

They follow aten/src/ATen/native/quantized/FakeQuantPerTensorAffine.cpp and
FakeQuantPerChannelAffine.cpp: each result is ``empty_like`` of the argument that it belongs to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import register_meta_kernel

aten = torch.ops.aten


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
