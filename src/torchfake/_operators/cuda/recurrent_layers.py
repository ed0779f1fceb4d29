"""Recurrent layers on CUDA, and their cells.

Input: a call of one of torch's recurrent operators, whose first tensor may be a plain fake on CUDA.
Output: its result, from the operators that C++ calls on CUDA. Invariant: the operators and their
order are those of aten/src/ATen/native/RNN.cpp. Called by: torch's dispatcher (see
``_operators/cuda/register``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from torchfake._operators.cuda.composites import cudnn_accepts
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor

aten = torch.ops.aten
Redispatch = Callable[..., Any]


def lstm_cell(
    redispatch: Redispatch,
    tensor: Tensor,
    state: Any,
    of_input: Tensor,
    of_hidden: Tensor,
    *biases: Tensor | None,
) -> Any:
    """RNN.cpp, LSTMCell: the biases are added inside of one kernel."""
    if not _fit_cell(tensor, state[0], of_input, of_hidden, gates=4):
        return redispatch(tensor, state, of_input, of_hidden, *biases)
    products = linear(tensor, of_input), linear(state[0], of_hidden)
    return aten._thnn_fused_lstm_cell.default(*products, state[1], *biases)[:2]


def gru_cell(
    redispatch: Redispatch,
    tensor: Tensor,
    state: Tensor,
    of_input: Tensor,
    of_hidden: Tensor,
    *biases: Tensor | None,
) -> Any:
    """RNN.cpp, GRUCell: the same."""
    if not _fit_cell(tensor, state, of_input, of_hidden, gates=3):
        return redispatch(tensor, state, of_input, of_hidden, *biases)
    products = linear(tensor, of_input), linear(state, of_hidden)
    return aten._thnn_fused_gru_cell.default(*products, state, *biases)[0]


def _fit_cell(
    tensor: Tensor, state: Tensor, of_input: Tensor, of_hidden: Tensor, *, gates: int
) -> bool:
    """Whether the arguments of a cell fit each other, and are on CUDA: C++ refuses others."""
    return (
        tensor.is_cuda
        and tensor.dim() == state.dim() == 2
        and tensor.shape[0] == state.shape[0]
        and of_input.shape == (gates * state.shape[1], tensor.shape[1])
        and of_hidden.shape == (gates * state.shape[1], state.shape[1])
    )


# Whole layers: one operator of cuDNN.


def layers(mode: int) -> Callable[..., Any]:
    """The kernel of a recurrent operator, in the mode that cuDNN has for it (cudnnRNNMode_t)."""

    def kernel(redispatch: Redispatch, tensor: Tensor, *args: Any) -> Any:
        if not cudnn_accepts(tensor):
            return redispatch(tensor, *args)
        state, params, has_biases, num_layers, dropout, train, bidirectional, batch_first = args
        options = num_layers, batch_first, dropout, train, bidirectional
        return _run_cudnn(mode, tensor, state, params, has_biases, options, [])

    return kernel


def layers_of_packed(mode: int) -> Callable[..., Any]:
    """The same of a packed sequence."""

    def kernel(redispatch: Redispatch, tensor: Tensor, sizes: Tensor, *args: Any) -> Any:
        if not cudnn_accepts(tensor):
            return redispatch(tensor, sizes, *args)
        if isinstance(sizes, FakeTensor):
            sizes = known_values.read_value(sizes, "a packed sequence")
        state, params, has_biases, num_layers, dropout, train, bidirectional = args
        options = num_layers, False, dropout, train, bidirectional
        return _run_cudnn(mode, tensor, state, params, has_biases, options, sizes.tolist())

    return kernel


def _run_cudnn(
    mode: int,
    tensor: Tensor,
    state: Any,
    params: list[Tensor],
    has_biases: bool,
    options: tuple[Any, ...],
    sizes: list[int],
) -> Any:
    """aten/src/ATen/native/cudnn/RNN.cpp, _cudnn_impl."""
    hidden, cell = (state, None) if isinstance(state, Tensor) else state
    hidden_size, proj_size = hidden.shape[2], 0
    if cell is not None and cell.shape[2] != hidden_size:
        hidden_size, proj_size = cell.shape[2], hidden_size
    num_weights = 2 + 2 * has_biases + (proj_size > 0)
    sizes_and_layers = hidden_size, proj_size, *options, sizes
    results = aten._cudnn_rnn.default(
        tensor, params, num_weights, None, hidden, cell, mode, *sizes_and_layers, None
    )
    return results[: 2 if cell is None else 3]
