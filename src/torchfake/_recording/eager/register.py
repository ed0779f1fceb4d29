"""Registers the kernels that operators have while operations are recorded.

Input: the kernels of this package. Output: none; they are registered before the first operation is
recorded. Invariant: the kernels run while a deferred mode is on, and for a deferred fake outside of
all modes, and at no other time. A kernel costs its operator a Python call, so the kernels for
tangents are registered only once there may be a tangent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from torchfake._operators.composites import gradients, layers, matrices
from torchfake._recording.eager import composites, derivatives, recurrent_layers
from torchfake._tensor.attention import scaled_dot_product_attention
from torchfake._torch import dispatch_keys, dispatcher
from torchfake._torch.contexts import holding, shared

aten = torch.ops.aten
_KEY = dispatch_keys.RECORDING_KEY

_lock = shared(threading.RLock())


def register_for_tangents() -> None:
    """Register the kernels of operators whose tangents C++ computes differently for subclasses."""
    operators = (
        aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats, aten._batch_norm_with_update.default,
        aten.native_layer_norm.default, aten.native_group_norm.default,
    )  # fmt: skip
    with holding(_lock):
        for op in operators:
            if not _KEY.has_kernel(op):  # an interrupt may have come between
                _KEY.register(op, derivatives.with_tangents_of_eager(op))
        dispatcher.before_tangents.clear()


def make_dual(redispatch: Callable[..., Any], *args: Any) -> Any:
    """The kernel of ``forward_ad.make_dual``, the only function that makes tangents."""
    dispatcher.expect_tangents()
    return redispatch(*args)


def kernels_of_operators() -> dict[Any, Callable[..., Any]]:
    """The kernels of operators that are listed one by one."""
    return {
        aten.linalg_svdvals.default: matrices.svdvals,
        aten.linalg_eigvalsh.default: matrices.eigvalsh,
        **matrices.RANKS_INTO,
        aten.ctc_loss.Tensor: composites.ctc_loss,
        aten.cumprod_backward.default: derivatives.cumprod_backward,
        aten.cross_entropy_loss.default: composites.cross_entropy_loss,
        aten.embedding_bag.default: composites.embedding_bag,
        aten.embedding_bag.padding_idx: composites.embedding_bag,
        aten.group_norm.default: layers.group_norm,
        aten.native_group_norm_backward.default: layers.native_group_norm_backward,
        aten._transformer_encoder_layer_fwd.default: layers.transformer_encoder_layer,
        aten.mish_backward.default: gradients.mish_backward,
        aten.prod.default: derivatives.prod,
        aten.prod.dim_int: derivatives.prod,
        aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
    }


def register_kernels() -> None:
    """Register all but those for tangents, which takes milliseconds."""
    recurrent_layers.register_kernels()
    _KEY.register_frequent(aten.matmul.default, composites.matmul)
    for op, kernel in kernels_of_operators().items():
        _KEY.register(op, kernel)
    for packet in (aten.quantile, aten.nanquantile, aten.linalg_matrix_rank, aten.stft):
        for name in packet.overloads():
            overload = getattr(packet, name)
            if not any(a.is_out for a in overload._schema.arguments):
                _KEY.register(overload, composites.with_recorded_arguments)
    _KEY.register(aten._make_dual.default, make_dual)
