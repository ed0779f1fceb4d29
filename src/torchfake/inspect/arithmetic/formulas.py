"""The FLOPs of any call of an operator: torch's formulas, and ours.

Input: a call. Output: its FLOPs and the kind of its operator; None without a formula. Invariant:
torch's registry (``torch.utils.flop_counter.register_flop_formula``) is read at each call, so a
formula counts from the moment on at which it is registered. A formula of ours stands in front of
torch's only where torch's is known to be wrong (:data:`_CORRECTED`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from torchfake.inspect.arithmetic import attention, layers, matrices, products
from torchfake.inspect.arithmetic.call import Call, functional_packet
from torchfake.inspect.arithmetic.kinds import (
    ATTENTION,
    BACKWARD,
    CONVOLUTION,
    CUSTOM,
    MATMUL,
    RECURRENT,
)
from torchfake.observe import traits_of

Count = Callable[[Call], int]

_UNPACKED: Count = attention.attention_flops
"""Torch counts the FLOPs of kernels that are called directly as if heads came before lengths, and
reads lengths of packed sequences as real tensors."""

_CORRECTED: dict[str, Count] = {
    "flex_attention": attention.flex_attention_flops,
    "flex_attention_backward": attention.flex_attention_flops,
    "aten::convolution_backward": layers.convolution_backward_flops,
    **{
        f"{name}_{way}": _UNPACKED
        for name in attention.HEADS_LAST
        for way in ("forward", "backward")
    },
    "torch_attn::_varlen_attn": _UNPACKED,
    "torch_attn::_varlen_attn_out": _UNPACKED,
}
"""Formulas of ours that count instead of torch's."""

_LINEAR_LOSSES = (
    "torch_nn::_linear_cross_entropy_batch_chunked",
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
)

_ADDED: dict[str, Count] = {
    **dict.fromkeys(products.FIRST_FACTORS, products.product_flops),
    "aten::addbmm": products.summed_product_flops,
    "aten::_euclidean_dist": products.distance_product_flops,
    "aten::_foreach_mm": products.list_product_flops,
    "aten::_grouped_mm": products.grouped_product_flops,
    "aten::_scaled_grouped_mm": products.grouped_product_flops,
    "aten::_scaled_grouped_mm_v2": products.grouped_product_flops,
    "aten::_trilinear": products.trilinear_flops,
    **dict.fromkeys(_LINEAR_LOSSES, products.linear_loss_flops),
    **dict.fromkeys(layers.CONVOLUTIONS, layers.convolution_flops),
    "aten::convolution_backward_overrideable": layers.convolution_backward_flops,
    **dict.fromkeys(layers.RECURRENT, layers.recurrent_flops),
    "aten::_native_multi_head_attention": layers.attention_layer_flops,
    "aten::_transformer_encoder_layer_fwd": layers.encoder_layer_flops,
    **dict.fromkeys(attention.HEADS_FIRST, attention.attention_flops),
    **{f"{name}_backward": attention.attention_flops for name in attention.HEADS_FIRST},
    "aten::_cudnn_attention_forward": attention.attention_flops,
}
"""Formulas for operators that torch has none for; torch may have one in another version."""

_KINDS = {
    **dict.fromkeys(layers.RECURRENT, RECURRENT),
    "aten::_native_multi_head_attention": MATMUL,
    "aten::_transformer_encoder_layer_fwd": MATMUL,
    "aten::_trilinear": MATMUL,
    "aten::_euclidean_dist": MATMUL,
    **dict.fromkeys(_LINEAR_LOSSES, CUSTOM),
}
"""Kinds that names do not tell."""


class OperatorFlops(NamedTuple):
    """The FLOPs of a call."""

    total: int
    recomputed: int  # those of them that repeat FLOPs of the forward pass


def flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> OperatorFlops | None:
    """The FLOPs of a call; None without a formula, and if the call is reported by its parts."""
    if result is NotImplemented:
        return None
    packet = functional_packet(func)
    name, registered = _name_of(packet), _registry().get(packet)
    own = _CORRECTED.get(name) or (None if registered is not None else _ADDED.get(name))
    call = Call(func, args, kwargs, result)
    if own is not None:
        count = own(call)
    elif registered is not None:
        count = int(registered(*args, **kwargs, out_val=result))
    else:
        return None
    return OperatorFlops(count, attention.recomputed_flops(call, count))


def has_formula(func: Any) -> bool:
    """Whether the FLOPs of an operator's calls are known."""
    packet = functional_packet(func)
    name = _name_of(packet)
    return name in _CORRECTED or name in _ADDED or packet in _registry()


def reads_values(func: Any) -> bool:
    """Whether FLOPs follow from values too, not only from metadata: from lengths of sequences."""
    return _CORRECTED.get(_name_of(functional_packet(func))) is _UNPACKED


def products_of(call: Call, flops: int) -> tuple[matrices.Product, ...]:
    """The products that a call with `flops` FLOPs computes; none if the result is no matrix."""
    if kind_of_product(call.func) == CONVOLUTION:
        return matrices.convolution_products(call, flops)
    return matrices.products_of(_name_of(functional_packet(call.func)), call, flops)


def kind_of_product(func: Any) -> str:
    """The kind of an operator that has a formula."""
    name = _name_of(functional_packet(func))
    if name in _KINDS:
        return _KINDS[name]
    if "attention" in name or "varlen_attn" in name:
        kernel = next((kernel for kernel in ATTENTION if kernel in name), "flash")
        return ATTENTION[kernel] + (BACKWARD if "_backward" in name else "")
    return {"conv": CONVOLUTION, "matmul": MATMUL}.get(traits_of(func).product_kind or "", CUSTOM)


@cache
def _name_of(packet: Any) -> str:
    return str(getattr(packet, "_qualified_op_name", packet))


@cache
def _flop_counter() -> Any:
    """Torch's module, imported on first use, because the import is slow."""
    from torch.utils import flop_counter

    return flop_counter


def _registry() -> Any:
    return _flop_counter().flop_registry
