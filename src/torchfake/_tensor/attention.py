"""Which kernel ``scaled_dot_product_attention`` runs on the device that a fake reports.

Input: the arguments of the attention call. Output: the result of the operator that eager would
call, so that strides, saved tensors and the backward pass are those of eager. Invariant: a call
that eager refuses goes to torch's own function, which refuses the call.

C++ sees the wrapper's carrier device and would always take the math path, which saves a matrix of
length by length that fused kernels do not make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfake._core.devices import decode
from torchfake._tensor.autocast.policies import cast
from torchfake._tensor.cuda_attention import Call, kernel_for
from torchfake._torch import kernels

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def scaled_dot_product_attention(
    math_path: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """``torch.nn.functional.scaled_dot_product_attention`` for fakes.

    `math_path` is what C++ would run: it checks the arguments and takes the math path. `query`,
    `key` and `value` have the shape ``[batch, heads, length, dim]``.
    """
    query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    adds_batch = query.dim() == key.dim() == value.dim() == 3 and kernels.attention_adds_batch_dim()
    if adds_batch:
        while attn_mask is not None and attn_mask.dim() < 4:
            attn_mask = attn_mask.unsqueeze(0)
        query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
    call = Call(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    result = _attend(math_path, call, scale)
    return result.squeeze(0) if adds_batch else result


def _attend(math_path: Callable[..., Any], call: Call, scale: float | None) -> Any:
    """Run the kernel of the reported device, or the math path."""
    devices = [decode(t.device).type for t in call.tensors]  # torch.func reports carriers
    if devices == ["cpu"] * 3:
        return _on_cpu(math_path, call, scale)
    run = None
    is_on_cuda = devices[0] == "cuda"  # other devices' kernels are not known
    if is_on_cuda and not (call.is_causal and call.mask is not None):
        run = kernel_for(call)
    if run is not None:
        mask = _additive_mask(call.mask, call.query.dtype)
        return run(*call.tensors, mask, call.dropout_p, call.is_causal, scale)
    return math_path(*call[:6], scale=scale, enable_gqa=call.enable_gqa)


def _on_cpu(math_path: Callable[..., Any], call: Call, scale: float | None) -> Any:
    """Run flash attention where eager chooses it, else the math path."""
    options: dict[str, Any] = {"scale": scale, "enable_gqa": call.enable_gqa}
    mask, dtype = call.mask, call.query.dtype
    is_valid = mask is None or (
        mask.dtype in (torch.bool, torch.float32, dtype)
        and (not call.is_causal or kernels.cpu_attention_allows_causal_mask())
    )
    has_elements = 0 not in [t.numel() for t in call.tensors]
    is_flash = (
        is_valid
        and has_elements
        and kernels.takes_cpu_flash_attention(
            *call.tensors, mask, dropout_p=call.dropout_p, is_causal=call.is_causal, **options
        )
    )
    if not is_flash:  # the math path refuses an invalid mask, as eager does
        _check_mask(call.query, call.key, mask, call.enable_gqa)
        return math_path(*call[:6], **options)
    kernel = aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(*call.tensors, *call[4:6], attn_mask=_additive_mask(mask, dtype), scale=scale)[0]


def _check_mask(query: Tensor, key: Tensor, mask: Tensor | None, enable_gqa: bool) -> None:
    """Refuse a mask that enlarges the scores: eager adds it in place, C++ not for subclasses."""
    num_dims = min(query.dim(), key.dim())
    if mask is None or mask.dim() < 2 or num_dims < (3 if enable_gqa else 2) or not query.numel():
        return
    shared = () if enable_gqa else key.shape[:-2]  # else the keys are repeated for the queries
    batch = torch.broadcast_shapes(query.shape[:-2], shared)
    scores = torch.Size((*batch, query.shape[-2], key.shape[-2]))
    result = torch.broadcast_shapes(scores, mask.shape)
    if result != scores:
        raise RuntimeError(
            f"output with shape {list(scores)} doesn't match the broadcast shape {list(result)}"
        )


def _autocast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """The arguments, in the dtype of autocast if autocast is on."""
    device_type = next(decode(t.device).type for t in tensors if t is not None)
    if not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    castable = (torch.float32, *_HALF)
    casts = [  # the last one first, as torch does
        cast(t, dtype, dtype) if t is not None and t.dtype in castable else t
        for t in reversed(tensors)
    ]
    return tuple(reversed(casts))


def _additive_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask that is added to the scores, made from a boolean one as eager makes it."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    excluded = torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device)
    return torch.where(mask, 0.0, excluded)
