"""Scratch memory: what CUDA kernels allocate for themselves, and free before they return.

Input: a call of an operator on fakes on CUDA. Output: the bytes of each allocation, in order.
Invariant: the sizes are those of torch's own source, which each function names; scratch memory of
closed libraries such as cuDNN is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchfake._core.gpu_profiles import ROCM
from torchfake._torch import kernels
from torchfake.inspect.storages.attention_memory import (
    HALF,
    Kernel,
    Sizes,
    efficient_backward_bytes,
    efficient_bytes,
    flash_backward_bytes,
    flash_bytes,
)
from torchfake.inspect.storages.cuda_memory import MATRIX_PRODUCTS, cublas_workspace_bytes
from torchfake.inspect.storages.reduction_memory import reduction_bytes

aten = torch.ops.aten

MADE_LAST_FIRST = frozenset({aten.native_dropout.default})
"""Operators whose kernel allocates its last result first."""


def may_need_scratch(func: Any) -> bool:
    """Whether the kernel of an operator may allocate memory for itself."""
    return func in _SIZES


def kernel_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], gpu: Any) -> Sizes:
    """Bytes of each scratch allocation of an operator's kernel on a GPU."""
    sizes_of = _SIZES.get(func)
    if gpu.backend == ROCM and (func in _ATTENTION or sizes_of is _product_bytes):
        return ()  # the sizes that AOTriton and hipBLASLt allocate are not known
    return () if sizes_of is None else sizes_of(Kernel(args, kwargs, gpu))


def is_product(func: Any) -> bool:
    """Whether the scratch memory of the operator's kernel is a cuBLAS workspace."""
    return _SIZES.get(func) is _product_bytes


# Matrix products: torch allocates a workspace for each call, from 2.15 on.

_CUBLAS_LT_BYTES = 1 << 20


def _product_bytes(call: Kernel) -> Sizes:
    """aten/src/ATen/cuda/CublasHandlePool.cpp; a one-dimensional bias is added by cuBLASLt."""
    first = call.args[0]
    if any(0 in t.shape for t in call.args if isinstance(t, torch.Tensor)):
        return ()
    if len(call.args) > 2 and (first.dim() == 1 or first.dtype in HALF):
        is_added = first.dim() <= 2 and call.args[1].dim() == 2 and call.args[2].dim() == 2
        if is_added:
            return (_CUBLAS_LT_BYTES,)
    return (cublas_workspace_bytes(call.gpu),)


# Reductions.

_PAIR, _WELFORD = 16, 4  # bytes of a value with its index; number of values in Welford's variance


def _accumulated(dtype: torch.dtype) -> int:
    """Bytes of the accumulator of a sum over elements of `dtype`."""
    if dtype.is_complex:
        return max(8, dtype.itemsize)
    if not dtype.is_floating_point:
        return 8
    return max(4, dtype.itemsize)


def _reduction(element_bytes: Callable[[torch.dtype], int]) -> Callable[[Kernel], Sizes]:
    """Make a function that gives the sizes for a reduction, whose second argument is the dims."""

    def sizes(call: Kernel) -> Sizes:
        tensor: torch.Tensor = call.args[0]
        dims = _dims(call)
        if not tensor.dim():
            return ()
        number = element_bytes(call.kwargs.get("dtype") or tensor.dtype)
        layout = tensor.shape, tensor.stride()
        return reduction_bytes(*layout, tuple(dims), number, call.gpu.multi_processor_count)

    return sizes


def _dims(call: Kernel) -> Sequence[int]:
    found = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if isinstance(found, bool) or found is None:
        return ()
    return (found,) if isinstance(found, int) else found


def _norm_bytes(call: Kernel) -> Sizes:
    dims = call.args[2:3] or (call.kwargs.get("dim"),)
    return _reduction(_accumulated)(call._replace(args=(call.args[0], *dims)))


# Others.


def _product_of_gradient(call: Kernel) -> Sizes:
    """aten/src/ATen/native/cuda/SoftMax.cu: the gradient times the result."""
    return (call.args[0].nbytes,)


def _log_sum_bytes(call: Kernel) -> Sizes:
    """aten/src/ATen/native/ReduceOps.cpp: maxima, their absolute values, a mask, exponentials."""
    tensor: torch.Tensor = call.args[0]
    reduced = {dim % tensor.dim() for dim in _dims(call)} if tensor.dim() else set()
    kept = tensor.numel() // max(1, torch.Size(tensor.shape[dim] for dim in reduced).numel())
    return kept * tensor.dtype.itemsize, kept * tensor.dtype.itemsize, kept, tensor.nbytes


_NO_REDUCTION = 0  # c10: Reduction.h


def _loss_bytes(call: Kernel) -> Sizes:
    """aten/src/ATen/native/Loss.cpp: the losses of all elements, before they are reduced."""
    tensor: torch.Tensor = call.args[0]
    reduction = call.args[2] if len(call.args) > 2 else call.kwargs.get("reduction", 1)
    if reduction == _NO_REDUCTION:
        return ()
    return tensor.nbytes, *_reduction(_accumulated)(call._replace(args=(tensor,)))


def _cross_entropy_bytes(call: Kernel) -> Sizes:
    """aten/src/ATen/native/Loss.cpp: two tensors of the size of the logits, and the reduction."""
    reduction = call.args[4] if len(call.args) > 4 else call.kwargs.get("reduction", 1)
    if reduction == _NO_REDUCTION:
        return ()
    tensor: torch.Tensor = call.args[0]
    summed = _reduction(_accumulated)(call._replace(args=(tensor,)))
    return tensor.nbytes, tensor.nbytes, *summed


_SORTED_COPIES = 6


def _index_put_bytes(call: Kernel) -> Sizes:
    """aten/src/ATen/native/cuda/Indexing.cu: indices are sorted if values are accumulated."""
    adds = call.args[3] if len(call.args) > 3 else call.kwargs.get("accumulate", False)
    found = [index for index in call.args[1] if index is not None]
    if not adds or not found:
        return ()
    return (8 * torch.broadcast_shapes(*(index.shape for index in found)).numel(),) * _SORTED_COPIES


_FEW_INDICES = 3072
_ROWS_OF_THREAD = 10


def _embedding_bytes(call: Kernel) -> Sizes:
    """aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu: many indices are sorted, and each
    segment of equal indices is summed in float32.
    """
    grad, indices, num_weights = call.args[:3]
    number = indices.numel()
    if number <= _FEW_INDICES:
        return ()
    segments = min(number, num_weights)
    partial = number // _ROWS_OF_THREAD + segments
    width = -(-grad.shape[-1] // 32) * 32
    return 8 * number, 8 * number, 8 * segments, 8 * segments, 8 * partial, partial * width * 4


_MANY_ROWS = 64 * 1024
_ROWS_OF_BLOCK = 32


def _norm_backward_bytes(call: Kernel) -> Sizes:
    """aten/src/ATen/native/cuda/layer_norm_kernel.cu: for many short rows, the gradients of the
    weights are summed block by block.
    """
    tensor, shape = call.args[1], call.args[2]
    length = torch.Size(shape).numel()
    num_rows = tensor.numel() // max(1, length)
    if num_rows <= _MANY_ROWS or length // 32 >= call.gpu.multi_processor_count // 2:
        return ()
    blocks = -(-num_rows // _ROWS_OF_BLOCK)
    layout = (blocks, length), (length, 1), (0,), 4
    summed = reduction_bytes(*layout, call.gpu.multi_processor_count)
    weights = 2 if any(isinstance(a, torch.Tensor) for a in call.args[6:7]) else 1
    return *(blocks * length * tensor.dtype.itemsize for _ in range(weights)), *summed


_SIZES: dict[Any, Callable[[Kernel], Sizes]] = {
    **dict.fromkeys(
        (aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default,
         aten.nansum.default, aten.prod.default, aten.prod.dim_int),
        _reduction(_accumulated),
    ),
    aten.linalg_vector_norm.default: _norm_bytes,
    **dict.fromkeys(
        (aten.var.correction, aten.std.correction, aten.var_mean.correction,
         aten.std_mean.correction),
        _reduction(lambda dtype: _WELFORD * max(4, dtype.itemsize)),
    ),
    **dict.fromkeys(
        (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default),
        _reduction(lambda dtype: dtype.itemsize),
    ),
    **dict.fromkeys(
        (aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim),
        _reduction(lambda dtype: _PAIR),
    ),
    **dict.fromkeys(
        (aten.any.default, aten.any.dim, aten.all.default, aten.all.dim), _reduction(lambda _: 1)
    ),
    aten._scaled_dot_product_flash_attention.default: flash_bytes,
    aten._scaled_dot_product_flash_attention_backward.default: flash_backward_bytes,
    aten._scaled_dot_product_efficient_attention.default: efficient_bytes,
    aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward_bytes,
    aten._softmax_backward_data.default: _product_of_gradient,
    aten.logsumexp.default: _log_sum_bytes,
    aten.mse_loss.default: _loss_bytes,
    aten.binary_cross_entropy_with_logits.default: _cross_entropy_bytes,
    aten.index_put.default: _index_put_bytes,
    aten.index_put_.default: _index_put_bytes,
    aten._index_put_impl_.default: _index_put_bytes,
    aten.huber_loss.default: _loss_bytes,
    aten.embedding_dense_backward.default: _embedding_bytes,
    aten.native_layer_norm_backward.default: _norm_backward_bytes,
    aten._fused_rms_norm_backward.default: _norm_backward_bytes,
}  # fmt: skip
_ATTENTION = frozenset(func for func in _SIZES if "scaled_dot_product" in str(func))
if not kernels.cublas_workspace_is_kept():
    _SIZES.update((getattr(aten, name).default, _product_bytes) for name in MATRIX_PRODUCTS)
