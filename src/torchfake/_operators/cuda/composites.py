"""Composites that take another path on CUDA.

Input: a call of one of these operators, whose first tensor may be a plain fake on CUDA. Output: the
call's result, from the operator that C++ calls on CUDA, or from ``redispatch`` where the conditions
of C++ do not hold. Invariant: each function names the C++ file that it follows, and checks the
conditions of that file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfake._tensor.autocast import kernels as autocast
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd, kernels

aten = torch.ops.aten
Redispatch = Callable[..., Any]


def has_compatible_type(redispatch: Redispatch, tensor: Tensor, source: Tensor) -> Any:
    """Whether ``tensor.data = source`` is possible: C++ compares the dispatch keys of wrappers, and
    wrappers on CUDA have one more key.
    """
    if isinstance(tensor, FakeTensor) and isinstance(source, FakeTensor):
        return True
    return redispatch(tensor, source)


def dropout(redispatch: Redispatch, tensor: Tensor, p: float, train: bool) -> Any:
    """aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable: the mask is of booleans."""
    is_fused = train and 0 < p < 1 and tensor.is_cuda and tensor.numel() > 0
    if not is_fused or tensor.is_complex():
        return redispatch(tensor, p, train)
    return aten.native_dropout.default(tensor, p, train)[0]


def softmax_with(op: Any, kernel: Any) -> Callable[..., Callable[..., Any]]:
    """Make the kernel of ``softmax`` or ``log_softmax``, which are called often:
    aten/src/ATen/native/SoftMax.cpp computes float32 from float16 without a copy of the argument.
    """

    def make_kernel(redispatch: Redispatch) -> Callable[..., Any]:
        def softmax(keys: Any, tensor: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
            is_half = dtype is torch.float32 and tensor.dtype is torch.float16
            if is_half and tensor.is_cuda and not comes_later(op):
                return kernel(tensor, dim, True)
            return redispatch(keys, tensor, dim, dtype)

        return softmax

    return make_kernel


def comes_later(op: Any) -> bool:
    """Whether autocast or a transform of ``torch.func`` comes first, which will call the operator
    again with converted arguments.
    """
    return autocast.comes_later(op, "cuda") or autograd.are_transforms_running()


_MAX_BATCH = {True: 880_801, False: 65_535}  # cuDNN's limits, in training and in evaluation
_OF_CUDNN = 1  # the index of cuDNN's implementation, for TorchScript's backward pass


def batch_norm_impl_index(
    redispatch: Redispatch,
    tensor: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """aten/src/ATen/native/Normalization.cpp, _select_batch_norm_backend."""
    parameters = weight, bias, mean, variance
    options = training, momentum, eps
    takes_cudnn = (
        weight is not None
        and bias is not None
        and tensor.is_cuda
        and cudnn_enabled
        and tensor.dtype is not torch.bfloat16
        and (tensor.dtype is not torch.float16 or weight.dtype is torch.float32)
        and (mean is None) == (variance is None)
        and (mean is not None or training)
        and tensor.dim() >= 3
        and tensor.shape[0] <= _MAX_BATCH[training]
        and tensor.numel() > 0
    )
    if not takes_cudnn:
        return redispatch(tensor, *parameters, *options, cudnn_enabled)
    tensor = tensor.contiguous(memory_format=kernels.memory_format_of(tensor))
    contiguous = (t if t is None else t.contiguous() for t in parameters)
    return *aten.cudnn_batch_norm.default(tensor, *contiguous, *options), _OF_CUDNN


_BILINEAR, _ZEROS = 0, 0
_MAX_CHANNELS = 1024


def grid_sampler(
    redispatch: Redispatch,
    tensor: Tensor,
    grid: Tensor,
    interpolation: int,
    padding: int,
    align_corners: bool,
) -> Any:
    """aten/src/ATen/native/GridSampler.cpp, cond_cudnn_grid_sampler."""
    takes_cudnn = (
        align_corners
        and (interpolation, padding) == (_BILINEAR, _ZEROS)
        and cudnn_accepts(tensor)
        and cudnn_accepts(grid)
        and tensor.dim() == 4
        and tensor.shape[1] <= _MAX_CHANNELS
    )
    if takes_cudnn:
        return aten.cudnn_grid_sampler.default(tensor, grid)
    return redispatch(tensor, grid, interpolation, padding, align_corners)


_CUDNN_DTYPES = (torch.float16, torch.float32, torch.float64)


def cudnn_accepts(tensor: Tensor) -> bool:
    """aten/src/ATen/native/Cudnn.cpp, cudnn_is_acceptable."""
    is_enabled: bool = torch.backends.cudnn.enabled
    return is_enabled and tensor.is_cuda and tensor.dtype in _CUDNN_DTYPES and tensor.numel() > 0
