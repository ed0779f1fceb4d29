"""FLOPs of attention.

Input: a call of an attention kernel. Output: its FLOPs. Invariant: all scores count, those that a
causal kernel skips too, as in torch's formulas; a backward pass has five products, of which the
scores are one that the forward pass has computed before.
"""

from __future__ import annotations

import math
from typing import Any

from torchfake.inspect.arithmetic.call import Call
from torchfake.observe import known_value

HEADS_FIRST = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_cudnn_attention",
)
"""Kernels whose tensors are (batch, heads, length, width), without the endings of their names."""

HEADS_LAST = ("aten::_flash_attention", "aten::_efficient_attention", "torch_attn::_varlen_attn")
"""Kernels whose tensors are (batch, length, heads, width), or (length, heads, width) of sequences
behind each other."""

_BEGINS = ("cum_seq_{}", "cu_seqlens_{}", "cu_seq_{}")
_LONGEST = ("max_{}", "max_seqlen_{}")


def is_backward(func: Any) -> bool:
    """Whether an operator is the backward pass of one that has this name before ``_backward``."""
    return "_backward" in func._schema.name


def attention_flops(call: Call) -> int:
    """The FLOPs of fused attention, forward or backward."""
    query, value = call.shape("query"), call.shape("value")
    is_first = call.func._schema.name.startswith(HEADS_FIRST)
    heads = query[-3] if is_first and len(query) > 3 else query[-2]
    products = (3, 2) if is_backward(call.func) else (1, 1)
    widths = products[0] * query[-1] + products[1] * value[-1]
    return 2 * _num_scores(call, is_first) * heads * widths


def flex_attention_flops(call: Call) -> int:
    """The FLOPs of ``flex_attention`` or its backward, whose keys may have one batch for all."""
    query, key, value = (tensor.shape for tensor in call.args[:3])
    products = (3, 2) if "backward" in str(call.func) else (1, 1)
    widths = products[0] * query[-1] + products[1] * value[-1]
    return int(2 * math.prod(query[:-1]) * key[-2] * widths)


def _num_scores(call: Call, is_first: bool) -> int:
    """The number of pairs of a query and a key, over all sequences."""
    if _is_packed(call):
        queries, keys = _lengths(call, "q"), _lengths(call, "k")
        return sum(q * k for q, k in zip(queries, keys, strict=True))
    query, key = call.shape("query"), call.shape("key")
    length = -2 if is_first else -3
    return math.prod(query[:-3]) * query[length] * key[length]


def _is_packed(call: Call) -> bool:
    names = [name.format("q") for name in _BEGINS]
    return any(call.has(name) for name in names) and call.one_of(*names) is not None


def _lengths(call: Call, of: str) -> list[int]:
    """The length of each sequence; of offsets that are not known, the largest that they allow."""
    begins = call.one_of(*(name.format(of) for name in _BEGINS))
    if begins is None:  # keys that begin where queries do
        return _lengths(call, "q")
    known = known_value(begins)
    if known is not None and known.any():  # memory that nobody wrote is known as zeros
        return [int(n) for n in known.diff().tolist()]
    longest = call.one_of(*(name.format(of) for name in _LONGEST))
    return [int(longest)] * (begins.shape[0] - 1)


def recomputed_flops(call: Call, count: int) -> int:
    """The FLOPs of a backward operator that repeat FLOPs of the forward pass: fused attention does
    not keep the scores, so it recomputes one of its five products; other operators repeat none.
    """
    name = str(getattr(call.func, "_overloadpacket", call.func))
    if "backward" not in name or not ("attention" in name or "varlen_attn" in name):
        return 0
    if hasattr(call.func, "_schema"):
        query, value = call.shape("query")[-1], call.shape("value")[-1]
    else:  # flex_attention_backward(query, key, value, ...)
        query, value = call.args[0].shape[-1], call.args[2].shape[-1]
    return int(count * query // (3 * query + 2 * value))
