"""Scratch memory that the attention kernels on CUDA allocate while they run.

Input: a call of an attention operator. Output: the bytes of each allocation, in order. Invariant:
the sizes are those of torch's own source; scratch memory of cuDNN is unknown and not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchfake._core.gpu_profiles import CudaProfile

Sizes = tuple[int, ...]
HALF = (torch.float16, torch.bfloat16)


class Kernel(NamedTuple):
    """A call of an operator, and the GPU that its kernel runs on."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    gpu: CudaProfile


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def flash_bytes(call: Kernel) -> Sizes:
    """aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, set_params_splitkv: if there
    are too few queries to fill the GPU, the keys are split, and each part has its own results.
    """
    query, key = call.args[:2]
    batch, heads, length, dim = query.shape
    if (call.args[3] if len(call.args) > 3 else call.kwargs.get("dropout_p", 0.0)) > 0:
        return ()
    if length == 1 and heads > key.shape[1]:  # query heads that share a key head form one block
        heads, length = key.shape[1], heads // key.shape[1]
    width = 256 if dim <= 64 else 128 if dim <= 128 else 64
    num_blocks = batch * heads * -(-length // 64)
    splits = _num_splits(num_blocks, call.gpu.multi_processor_count * 2, -(-key.shape[2] // width))
    rows = 4 * splits * batch * heads * length
    return () if splits == 1 else (rows, rows * _rounded(dim, 32))


def _num_splits(num_blocks: int, num_slots: int, num_key_blocks: int) -> int:
    """num_splits_heuristic: the fewest splits that keep the GPU nearly as busy as possible."""
    if num_blocks >= 0.8 * num_slots:
        return 1
    most = min(128, num_slots, num_key_blocks)
    eligible = [
        n for n in range(1, most + 1)
        if n == 1 or -(-num_key_blocks // n) != -(-num_key_blocks // (n - 1))
    ]  # fmt: skip
    busy = {n: num_blocks * n / num_slots / -(-num_blocks * n // num_slots) for n in eligible}
    return next((n for n in eligible if busy[n] >= 0.85 * max(busy.values())), 1)


def flash_backward_bytes(call: Kernel) -> Sizes:
    """flash_api.cpp, mha_bwd: the gradient of the queries in float32, and if query heads share keys
    and values, the gradients of these for each query head.
    """
    grad, query, key, value, out = call.args[:5]
    batch, heads, length, dim = query.shape
    copies = [t.nbytes for t in (grad, out) if not t.transpose(1, 2).is_contiguous()]
    rows = batch * heads * _rounded(length, 128) * 4
    expanded = [batch * t.shape[2] * heads * dim * t.dtype.itemsize for t in (key, value)]
    shared = expanded if key.shape[1] != heads else []
    return *copies, rows, rows * _rounded(dim, 32), *shared


_LARGEST_SINGLE_TILE = 64  # head dimension up to which a tile covers a whole head
_LARGEST_IN_REGISTERS = 128  # head dimension up to which sums are kept in registers


def efficient_bytes(call: Kernel) -> Sizes:
    """mem_eff_attention/kernel_forward.h: wide results of half precision are summed in float32."""
    query, _, value = call.args[:3]
    is_kept = query.dtype in HALF and value.shape[-1] > _LARGEST_IN_REGISTERS
    return (query.shape[:3].numel() * value.shape[-1] * 4,) if is_kept else ()


def efficient_backward_bytes(call: Kernel) -> Sizes:
    """mem_eff_attention/kernel_backward.h: the product of gradient and result, its sums, and the
    gradient of the queries in float32 tiles, with four counters each.
    """
    query, value = call.args[1], call.args[3]
    batch, heads, length, dim = query.shape
    num_rows = batch * heads * length
    is_half = query.dtype in HALF
    sums: Sizes = (4 * num_rows,)
    if not is_half:
        sums = (num_rows * value.shape[-1] * 4, 4 * num_rows, 4 * num_rows)
    is_small = dim <= _LARGEST_SINGLE_TILE
    rows = 64 if is_small else 128
    columns = 128 if is_half and not is_small else 64
    num_tiles = -(-length // rows) * (_rounded(dim, columns) // columns)
    return *sums, batch * heads * num_tiles * (rows * columns + 4) * 4
