"""``flex_attention`` on fakes: attention with functions for its scores and its mask.

Input: the arguments of torch's operator. Output: the result, log-sum-exps and maxima of scores; of
the backward operator, gradients. Invariant: results have the metadata that torch's kernel for plain
tensors gives, and the tensors saved for backward are those that torch saves; on deferred fakes,
that kernel runs.

No tensor of all scores is made: its memory would be counted, and the kernel that torch.compile
generates has no such tensor. The functions run once, on 0-dim tensors, to raise their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from torchfake._core import modes
from torchfake._operators.higher_order.captured import captured_tensors, tensors_in
from torchfake._tensor.fake_tensor import is_deferred_fake
from torchfake._torch import backends, dispatch_keys
from torchfake._torch.compiler import higher_order
from torchfake.errors import UnsupportedOpError

Tensor = torch.Tensor

_Q_INDICES = 7  # in the tuple that a BlockMask becomes


class _Call(NamedTuple):
    """The arguments of one call."""

    query: Tensor
    key: Tensor
    value: Tensor
    score_mod: Callable[..., Any]
    block_mask: tuple[Any, ...]
    scale: float
    kernel_options: dict[str, Any]
    score_buffers: tuple[Any, ...] = ()
    mask_buffers: tuple[Any, ...] = ()


# Forward.


def _attention(*args: Any) -> Any:
    """The kernel above autograd: attention is one node of the autograd graph, as in torch."""
    call = _Call(*args)
    device_type = call.query.device.type
    if torch.is_autocast_enabled(device_type):
        cast = [_autocast(tensor, device_type) for tensor in call[:3]]
        with backends.autocast_off(device_type):
            return _attention(*cast, *call[3:])
    scored = [*tensors_in(call.score_buffers), *captured_tensors(call.score_mod)]
    masked = [*tensors_in(call.mask_buffers), *captured_tensors(call.block_mask[-1])]
    inputs = (call.query, call.key, call.value, *scored)
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in inputs):
        return _below_autograd(higher_order.flex_attention, *call)
    if call.block_mask[_Q_INDICES] is None:
        raise RuntimeError(
            "BlockMask q_indices is None. Backward pass requires q_indices to be computed. "
            "Please create the BlockMask with compute_q_blocks=True"
        )
    if any(tensor.requires_grad for tensor in masked):
        raise AssertionError("Captured buffers from mask mod that require grad are not supported.")
    return _Attention.apply(call, masked, *inputs)  # type: ignore[no-untyped-call]


def _autocast(tensor: Tensor, device_type: str) -> Tensor:
    is_cast = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype(device_type)) if is_cast else tensor


def _below_autograd(op: Any, *args: Any) -> Any:
    """Call `op` so that modes see it; a mode (FlopCounterMode) may return NotImplemented."""
    with higher_order.below(dispatch_keys.WRAPPER_KEY.keys):
        result = op(*args)
        return BELOW_AUTOGRAD[op](*args) if result is NotImplemented else result


class _Attention(torch.autograd.Function):
    """Attention with gradients for query, key, value and the tensors of the score function."""

    @staticmethod
    def forward(ctx: Any, call: _Call, masked: list[Tensor], *inputs: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        query, key, value, *scored = inputs
        call = call._replace(query=query, key=key, value=value)
        out, log_sums, maxima = _below_autograd(higher_order.flex_attention, *call)
        ctx.mark_non_differentiable(maxima)
        blocks = tensors_in(call.block_mask[:-1])
        ctx.call = call._replace(query=None, key=None, value=None)  # type: ignore[arg-type]
        ctx.num_scored = len(scored)
        ctx.save_for_backward(query, key, value, out, log_sums, maxima, *scored, *blocks, *masked)
        return out, log_sums, maxima

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        query, key, value, out, log_sums, _, *rest = ctx.saved_tensors
        call = ctx.call._replace(score_buffers=tuple(rest[: ctx.num_scored]))
        *found, of_scored = _below_autograd(
            higher_order.flex_attention_backward,
            *(query, key, value, out, log_sums, *grads[:2], call.score_mod, None),
            *call[4:],
        )
        return None, None, *found, *of_scored


def _forward(*args: Any) -> Any:
    """The kernel of the forward operator, below autograd."""
    call = _Call(*args)
    if _is_deferred(call):
        kernel = higher_order.kernel_for_tensors(higher_order.flex_attention)
        assert kernel is not None
        return kernel(*args)
    query, key, value = call.query, call.key, call.value
    _check_batches(query, key)
    _call_functions_once(call)
    batch, heads, length, _ = query.shape
    out = _laid_out_as(query, (batch, heads, length, value.shape[-1]))
    log_sums, maxima = (
        query.new_empty((batch, heads, length), dtype=_score_dtype(query)) for _ in range(2)
    )
    return out, log_sums, maxima


def _is_deferred(args: Sequence[Any]) -> bool:
    return modes.is_recording() or any(map(is_deferred_fake, tensors_in(tuple(args))))


def _check_batches(query: Tensor, key: Tensor) -> None:
    if query.shape[0] != key.shape[0] and (query.shape[0] < 2 or key.shape[0] != 1):
        raise RuntimeError(
            f"Bq and Bkv must broadcast. Got Bq={query.shape[0]} and Bkv={key.shape[0]}"
        )


def _score_dtype(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _call_functions_once(call: _Call) -> None:
    """Call both functions once, as for one score, so that their errors are raised."""
    score = call.query.new_zeros((), dtype=_score_dtype(call.query))
    place = [call.query.new_zeros((), dtype=torch.int64) for _ in range(4)]
    with torch.no_grad(), higher_order.indexing_by_numbers_in_tensors():
        call.block_mask[-1](*place, *call.mask_buffers)
        call.score_mod(score, *place, *call.score_buffers)


def _laid_out_as(like: Tensor, shape: Sequence[int]) -> Tensor:
    """An empty tensor whose dims have the memory order of `like`, but with the last dim dense."""
    strides = like.stride()
    order = sorted(range(len(shape)), key=lambda dim: (strides[dim], -dim))
    last = len(shape) - 1
    if _strides(shape, order)[last] != 1:
        order = [last, *(dim for dim in order if dim != last)]
    return like.new_empty_strided(tuple(shape), _strides(shape, order))


def _strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


# Backward.


def _backward(*args: Any) -> Any:
    query, key, value, _, _, _, _, _, _, _, _, _, *buffers = args
    if _is_deferred(args):
        raise UnsupportedOpError(
            "the backward pass of flex_attention cannot be recorded: torch traces the score "
            "function for it. Call materialize_module first, or run it in fake_mode"
        )
    if query.dtype != key.dtype or query.dtype != value.dtype:
        raise ValueError(
            "Backward pass with mixed query, key, and value dtype is not supported, got "
            f"query.dtype={query.dtype}, key.dtype={key.dtype}, and value.dtype={value.dtype}"
        )
    _check_batches(query, key)
    batch = query.shape[0]
    grads = [_laid_out_as(query, query.shape)]
    for tensor, width in ((key, query.shape[-1]), (value, value.shape[-1])):
        grad = _laid_out_as(tensor, (tensor.shape[0], *tensor.shape[1:3], width))
        grads.append(grad if tensor.shape[0] == batch else grad.sum(0, keepdim=True))
    scored = buffers[0] if buffers else ()
    of_scored = tuple(
        torch.empty_like(buffer, memory_format=torch.contiguous_format)
        if isinstance(buffer, Tensor) and buffer.requires_grad
        else None
        for buffer in scored
    )
    return *grads, of_scored


ABOVE_AUTOGRAD: dict[Any, Callable[..., Any]] = {
    higher_order.flex_attention: _attention,
    higher_order.flex_attention_backward: _backward,
}

BELOW_AUTOGRAD: dict[Any, Callable[..., Any]] = {
    higher_order.flex_attention: _forward,
    higher_order.flex_attention_backward: _backward,
}
