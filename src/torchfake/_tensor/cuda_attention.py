"""Which attention kernel runs on a GPU: cuDNN's, flash, memory-efficient, or the math path.

Input: the arguments of ``scaled_dot_product_attention``, for fakes on CUDA. Output: a function that
runs the operator which eager would call, or None for the math path. Invariant: the conditions and
their order are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, for the GPU of the
mode's profile; without one, for compute capability 8.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchfake._core import modes
from torchfake._core.gpu_profiles import CUDA, CudaProfile
from torchfake._torch import kernels

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_UNKNOWN_GPU = CudaProfile("", 0, 8, 0, 0, "")

_MATH, _FLASH, _EFFICIENT, _CUDNN = 0, 1, 2, 3  # c10: SDPBackend.h


class Call(NamedTuple):
    """The arguments of the call: query, key and value are ``[batch, heads, length, dim]``."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout_p: float
    is_causal: bool
    enable_gqa: bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def has_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in self.tensors)


def kernel_for(call: Call) -> Callable[..., Any] | None:
    """The function that runs the chosen kernel; None for the math path.

    Raises:
        RuntimeError: as in eager, if no kernel is possible and the math path is disabled.
    """
    state = modes.current()
    machine = None if state is None else state.accelerator
    if machine is None or machine.gpu is None:
        return _kernel_on(_UNKNOWN_GPU, call)
    return machine.gpu.answer(lambda profile: _kernel_on(profile, call))


def _kernel_on(profile: CudaProfile, call: Call) -> Callable[..., Any] | None:
    gpu = profile.major, profile.minor
    for backend in _priority_order(gpu, has_cudnn=profile.backend == CUDA):
        if backend == _MATH and torch.backends.cuda.math_sdp_enabled():
            return None
        if backend in _KERNELS:
            fits, run = _KERNELS[backend]
            if _has_four_dims(call) and fits(call, gpu):
                return run
    raise RuntimeError("No available kernel. Aborting execution.")


def _priority_order(gpu: tuple[int, int], *, has_cudnn: bool) -> list[int]:
    """check_prefer_cudnn_attention: cuDNN's kernel comes first on Hopper and Blackwell. An AMD GPU
    has only the kernels of AOTriton.
    """
    order = kernels.attention_priority()
    if not has_cudnn:
        return [backend for backend in order if backend != _CUDNN]
    if order[:3] == [_FLASH, _EFFICIENT, _MATH] and gpu[0] in (9, 10):
        order = [_CUDNN, *order] if kernels.prefers_cudnn_attention() else order
    return order


def _has_four_dims(call: Call) -> bool:
    """Whether the call has four dims, one dtype, batch and device, and nothing empty."""
    query = call.query
    return all(
        t.dim() == 4
        and t.dtype == query.dtype
        and t.device == query.device
        and t.shape[0] == query.shape[0]
        and 0 not in t.shape
        for t in call.tensors
    )


def _heads_fit(call: Call, *, shared_by_keys_and_values: bool = True) -> bool:
    """check_batch_size_and_num_heads_dense."""
    of_query, *others = (t.shape[1] for t in call.tensors)
    if not call.enable_gqa:
        shares_one = kernels.attention_shares_one_head() and others == [1, 1]
        return shares_one or others == [of_query, of_query]
    if shared_by_keys_and_values and others[0] != others[1]:
        return False
    return all(of_query % n == 0 for n in others)


def _rows_are_dense(call: Call, *, one_is_dense: bool) -> bool:
    """check_last_dim_stride_equals_1_dense."""
    is_dense = all(t.stride(-1) == 1 for t in call.tensors)
    if one_is_dense and call.query.shape[-1] == 1:
        is_dense = True
    return is_dense and (call.mask is None or call.mask.stride(-1) == 1)


def _mask_fits(call: Call) -> bool:
    """check_attn_mask_shape: a mask that broadcasts and needs no gradient.

    Raises:
        IndexError: as in eager, for a mask of one dim.
    """
    mask = call.mask
    if mask is None:
        return True
    if mask.requires_grad or (mask.size(-2) and mask.dim() not in (2, 4)):
        return False
    batch, heads, length, _ = call.query.shape
    full = (batch, heads, length, call.key.shape[2])[-mask.dim() :]
    return all(m in (1, f) for m, f in zip(mask.shape, full, strict=True))


def _is_low_precision(call: Call, gpu: tuple[int, int]) -> bool:
    """check_dtypes_low_precision."""
    return call.query.dtype in (_HALF if gpu[0] >= 8 else _HALF[:1])


# Flash attention.

_MAX_FLASH_HEAD_DIM = 256


def _flash_fits(call: Call, gpu: tuple[int, int]) -> bool:
    """can_use_flash_attention."""
    dim = call.query.shape[-1]
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and gpu >= (8, 0)
        and call.mask is None
        and dim == call.key.shape[-1] == call.value.shape[-1]
        and dim <= _MAX_FLASH_HEAD_DIM
        and _flash_backward_fits(call, gpu)
        and not (call.is_causal and call.query.shape[2] != call.key.shape[2])
        and _is_low_precision(call, gpu)
        and _heads_fit(call)
        and _rows_are_dense(call, one_is_dense=True)
    )


def _flash_backward_fits(call: Call, gpu: tuple[int, int]) -> bool:
    """check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120."""
    dim = call.query.shape[-1]
    if not call.has_gradient or not ((8, 6) <= gpu <= (8, 9) or (12, 0) <= gpu <= (12, 1)):
        return True
    return dim <= 192 or (call.dropout_p == 0 and dim > 224)


def _run_flash(
    q: Tensor, k: Tensor, v: Tensor, _mask: Any, p: float, causal: bool, scale: Any
) -> Any:
    """Run flash attention with heads padded to a multiple of 8, scaled by the dim before that."""
    dim = q.shape[-1]
    if dim % 8:
        scale = dim**-0.5 if scale is None else scale
        q, k, v = (pad(t, (0, 8 - dim % 8)) for t in (q, k, v))
    result = aten._scaled_dot_product_flash_attention(q, k, v, p, causal, scale=scale)[0]
    return result[..., :dim] if dim % 8 else result


# Memory-efficient attention.

_MASK_ALIGNMENT = 8  # elements


def _efficient_fits(call: Call, gpu: tuple[int, int]) -> bool:
    """can_use_mem_efficient_attention."""
    query, key, value = call.tensors
    dtype, alignment = query.dtype, _product_alignment(query.dtype, gpu)
    dims = query.shape[-1], value.shape[-1]
    gqa = call.enable_gqa and not kernels.efficient_attention_shares_keys()
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and dtype in ((torch.float32, *_HALF) if gpu[0] >= 8 else (torch.float32, torch.float16))
        and query.shape[-1] == key.shape[-1]
        and all(dim % alignment == 0 for dim in dims)
        and (gpu[0] < 8 or all(t.storage_offset() % alignment == 0 for t in call.tensors))
        and _heads_fit(call._replace(enable_gqa=False) if gqa else call)
        and _rows_are_dense(call, one_is_dense=False)
    )


def _product_alignment(dtype: torch.dtype, gpu: tuple[int, int]) -> int:
    """minimum_gemm_alignment: the number of elements that the GPU's tensor cores require."""
    has_tensor_cores = gpu[0] >= 8 or (gpu[0] >= 7 and dtype in _HALF)
    lowest = 4 if gpu[0] >= 8 else 1
    return max(lowest, 128 // (8 * dtype.itemsize)) if has_tensor_cores else lowest


def _run_efficient(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, p: float, causal: bool, scale: Any
) -> Any:
    if mask is not None:
        mask = _aligned(mask).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    kernel = aten._scaled_dot_product_efficient_attention
    with_mask = mask is not None and kernels.efficient_attention_trains_masks()
    saved = _saves_log_sumexp(q, k, v, *([mask] if with_mask else []))
    return kernel(q, k, v, mask, saved, p, causal, scale=scale)[0]


def _aligned(mask: Tensor) -> Tensor:
    """attention.cpp, preprocess_mask: a row of a mask in memory is a multiple of 8 elements."""
    if not any(step % _MASK_ALIGNMENT for step in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    return pad(mask, (0, _MASK_ALIGNMENT - length % _MASK_ALIGNMENT))[..., :length]


def _saves_log_sumexp(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


# cuDNN's attention.

_MAX_CUDNN_SIZE = 65_535


def _cudnn_fits(call: Call, gpu: tuple[int, int]) -> bool:
    """can_use_cudnn_attention."""
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    length, of_keys = call.query.shape[2], call.key.shape[2]
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and not (is_deterministic and not warns_only)
        and _is_low_precision(call, gpu)
        and _mask_fits(call)
        and (8, 0) <= gpu <= (12, 1)
        and call.dropout_p * 16 % 1 == 0
        and _rows_are_dense(call, one_is_dense=True)
        and _heads_fit(call, shared_by_keys_and_values=False)
        and max(call.query.shape[:2]) <= _MAX_CUDNN_SIZE
        and _cudnn_head_dims_fit(call, gpu)
        and of_keys != 1
        and not (call.dropout_p and length == 1)
    )


def _cudnn_head_dims_fit(call: Call, gpu: tuple[int, int]) -> bool:
    """check_cudnn_tensor_shapes and check_cudnn_d256_bprop_head_dim."""
    dims = call.query.shape[-1], call.value.shape[-1]
    is_wide = gpu == (9, 0) or gpu[0] == 10
    takes_256 = is_wide and kernels.cudnn_attention_takes_256(gpu[0])
    limit = 256 if takes_256 else 192 if is_wide and dims == (192, 128) else 128
    if max(dims) > limit or any(dim % 8 for dim in dims):
        return False
    if takes_256 and call.has_gradient and not kernels.cudnn_attention_trains_all_widths():
        return max(dims) <= 128 or dims in ((192, 128), (256, 256))
    return True


def _run_cudnn(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, p: float, causal: bool, scale: Any
) -> Any:
    kernel = aten._scaled_dot_product_cudnn_attention
    saved = _saves_log_sumexp(q, k, v)
    return kernel(q, k, v, mask, saved, p, causal, False, scale=scale)[0]


_KERNELS: dict[int, tuple[Callable[[Call, tuple[int, int]], bool], Callable[..., Any]]] = {
    _FLASH: (_flash_fits, _run_flash),
    _EFFICIENT: (_efficient_fits, _run_efficient),
    _CUDNN: (_cudnn_fits, _run_cudnn),
}
