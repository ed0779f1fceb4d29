"""Registers our kernels for plain fakes on CUDA.

Input: the kernels of this package. Output: none; the kernels are registered before the first plain
fake on CUDA is made. Invariant: a kernel runs above autograd, if a plain fake on CUDA is among the
arguments and neither autocast nor a transform of ``torch.func`` is still to come: these call the
operator again with converted arguments. A kernel costs its operator 3 us.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from torchfake._operators.cuda import composites, ctc_loss, recurrent_layers
from torchfake._torch import dispatch_keys

aten = torch.ops.aten


def _where_it_decides(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, except where autocast or a transform of ``torch.func`` comes first."""

    def decide(redispatch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run = redispatch if composites.comes_later(op) else partial(kernel, redispatch)
        return run(*args, **kwargs)

    return decide


def kernels_of_operators() -> dict[Any, Callable[..., Any]]:
    """The kernels of the operators that CUDA computes differently."""
    found: dict[Any, Callable[..., Any]] = {
        aten._has_compatible_shallow_copy_type.default: composites.has_compatible_type,
        aten.dropout.default: composites.dropout,
        aten._batch_norm_impl_index.default: composites.batch_norm_impl_index,
        aten.grid_sampler.default: composites.grid_sampler,
        aten.ctc_loss.Tensor: ctc_loss.with_tensors,
        aten.ctc_loss.IntList: ctc_loss.with_lists,
        aten.lstm_cell.default: recurrent_layers.lstm_cell,
        aten.gru_cell.default: recurrent_layers.gru_cell,
    }
    modes = {aten.rnn_relu: 0, aten.rnn_tanh: 1, aten.lstm: 2, aten.gru: 3}  # cudnnRNNMode_t
    for packet, mode in modes.items():
        found[packet.input] = recurrent_layers.layers(mode)
        found[packet.data] = recurrent_layers.layers_of_packed(mode)
    return found


def register_kernels() -> None:
    """Register all kernels of this package, which takes milliseconds."""
    for op, run in (
        (aten.softmax.int, aten._softmax.default),
        (aten.log_softmax.int, aten._log_softmax.default),
    ):
        dispatch_keys.CUDA_WRAPPER_KEY.register_frequent(op, composites.softmax_with(op, run))
    for op, kernel in kernels_of_operators().items():
        dispatch_keys.CUDA_WRAPPER_KEY.register(op, _where_it_decides(op, kernel))
