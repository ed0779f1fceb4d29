"""The kernels of composites of fakes, registered before the first fake is made.

Input: the kernels of this package. Output: entries for torchfake's dispatch key. Invariant: the
kernels run above autograd, for tensors that carry that key, and for no others.
"""

from __future__ import annotations

import torch

from torchfake._operators.composites import gradients, layers, matrices, sequences, tensors, views
from torchfake._torch import backends, dispatch_keys

aten = torch.ops.aten


def register_kernels() -> None:
    """Register all kernels of this file, which takes milliseconds."""
    register = dispatch_keys.WRAPPER_KEY.register
    register(aten._transformer_encoder_layer_fwd.default, layers.transformer_encoder_layer)
    for operator in (
        aten._sobol_engine_draw.default, aten._sobol_engine_ff_.default,
        aten._sobol_engine_scramble_.default, aten._sobol_engine_initialize_state_.default,
    ):  # fmt: skip
        register(operator, tensors.on_values(operator))
    register(aten.set_.source_Tensor_storage_offset, tensors.set_to_source)
    register(aten.scaled_dot_product_attention.default, tensors.attention)
    register(aten.ctc_loss.Tensor, layers.ctc_loss)
    register(aten.isfinite.default, tensors.isfinite)
    register(aten.group_norm.default, layers.group_norm)
    register(aten.native_group_norm_backward.default, layers.native_group_norm_backward)
    register(aten.native_channel_shuffle.default, layers.native_channel_shuffle)
    register(aten.max_pool1d.default, layers.max_pool1d)
    register(aten.linalg_svdvals.default, matrices.svdvals)
    register(aten.linalg_eigvalsh.default, matrices.eigvalsh)
    register(aten.matmul.out, matrices.product_into)
    for overload, kernel in matrices.RANKS_INTO.items():
        register(overload, kernel)
    register(aten.one_hot.default, tensors.one_hot)
    register(aten.bincount.default, tensors.bincount)
    for packet in (aten.max, aten.min, aten.median, aten.nanmedian):
        register(packet.default, gradients.extreme)
    register(aten.masked_select.default, gradients.masked_select)
    register(aten.mish_backward.default, gradients.mish_backward)
    register(aten.clamp.default, gradients.clamp)
    if backends.CLAMP_COMPARES_IN_PLACE:
        register(aten.clamp.Tensor, gradients.clamp)
    register(aten.cumprod.default, gradients.cumprod)
    loss = aten.binary_cross_entropy_with_logits.default
    register(loss, gradients.binary_cross_entropy_with_logits)
    register(aten.prod.default, gradients.prod)
    register(aten.prod.dim_int, gradients.prod)
    register(aten.tensor_split.tensor_indices_or_sections, tensors.tensor_split)
    for packet in (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu):
        register(packet.input, sequences.recurrent_layer)
        register(packet.data, sequences.recurrent_layer_of_packed)
    kernels = {
        **dict.fromkeys(tensors.COMPARE_DEVICES, tensors.comparing_devices),
        **dict.fromkeys((aten.quantile, aten.nanquantile), tensors.quantile),
    }
    for packet, kernel in kernels.items():
        for overload in packet.overloads():
            if "out" not in overload and not overload.startswith("names"):
                register(getattr(packet, overload), kernel)
    register(aten._pack_padded_sequence.default, sequences.pack_padded_sequence)
    register(aten._pad_packed_sequence.default, sequences.pad_packed_sequence)


def register_kernels_of_scripts() -> None:
    """Register the kernels that only TorchScript needs: ``to`` takes ten times as long with one."""
    key = dispatch_keys.WRAPPER_KEY
    if not key.has_kernel(aten.to.device):
        key.before_use(_register_moves)
        key.prepare()


def _register_moves() -> None:
    for overload in (aten.to.dtype_layout, aten.to.device):
        dispatch_keys.WRAPPER_KEY.register(overload, tensors.moved)


dispatch_keys.WRAPPER_KEY.before_use(register_kernels)
views.install()
