"""Recurrent layers on CUDA, and their cells.

Input: a call of one of torch's recurrent operators, whose first tensor may be a plain fake on CUDA.
Output: the call's result, from the operators that C++ calls on CUDA. Invariant: the operators and
their order follow aten/src/ATen/native/RNN.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchfake._operators.composites.sequences import check_attributes
from torchfake._operators.cuda.composites import cudnn_accepts
from torchfake._tensor import known_values
from torchfake._tensor.autocast import kernels as autocast
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch.kernels import linear

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
    """RNN.cpp, GRUCell: the biases are added inside of one kernel."""
    if not _fit_cell(tensor, state, of_input, of_hidden, gates=3):
        return redispatch(tensor, state, of_input, of_hidden, *biases)
    products = linear(tensor, of_input), linear(state, of_hidden)
    return aten._thnn_fused_gru_cell.default(*products, state, *biases)[0]


def _fit_cell(
    tensor: Tensor, state: Tensor, of_input: Tensor, of_hidden: Tensor, *, gates: int
) -> bool:
    """Whether the arguments of a cell are on CUDA and fit each other, as C++ requires."""
    return (
        tensor.is_cuda
        and tensor.dim() == state.dim() == 2
        and tensor.shape[0] == state.shape[0]
        and of_input.shape == (gates * state.shape[1], tensor.shape[1])
        and of_hidden.shape == (gates * state.shape[1], state.shape[1])
    )


# Whole layers: one operator of cuDNN, or step by step.

_LSTM, _GRU = 2, 3  # cudnnRNNMode_t


def layers(mode: int) -> Callable[..., Any]:
    """The kernel of the recurrent operator with cuDNN's number `mode` (cudnnRNNMode_t)."""

    def kernel(redispatch: Redispatch, tensor: Tensor, *args: Any) -> Any:
        if not cudnn_accepts(tensor):
            has_steps = mode in (_LSTM, _GRU) and tensor.is_cuda and tensor.dim() == 3
            run = partial(_run_steps, mode) if has_steps else redispatch
            return run(tensor, *args)
        state, params, has_biases, num_layers, dropout, train, bidirectional, batch_first = args
        options = num_layers, batch_first, dropout, train, bidirectional
        return _run_cudnn(mode, tensor, state, params, has_biases, options, [])

    return kernel


def layers_of_packed(mode: int) -> Callable[..., Any]:
    """The kernel of a recurrent operator on packed sequences; `mode` is a cudnnRNNMode_t."""

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
    is_cast = autocast.comes_later(aten._cudnn_rnn.default, "cuda")
    check_attributes(tensor, state, params, compares_dtypes=not is_cast)
    num_weights = 2 + 2 * has_biases + (proj_size > 0)
    sizes_and_layers = hidden_size, proj_size, *options, sizes
    results = aten._cudnn_rnn.default(
        tensor, params, num_weights, None, hidden, cell, mode, *sizes_and_layers, None
    )
    return results[: 2 if cell is None else 3]


def _run_steps(
    mode: int,
    tensor: Tensor,
    state: Any,
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """RNN.cpp, without cuDNN: each step of each layer is a call of the cell."""
    sequence = tensor.transpose(0, 1) if batch_first else tensor
    parts = [state] if isinstance(state, Tensor) else list(state)
    states: list[Any] = list(zip(*(part.unbind(0) for part in parts), strict=True))
    directions = 2 if bidirectional else 1
    size = len(params) // (num_layers * directions)
    weights = [params[i : i + size] for i in range(0, len(params), size)]
    for i in range(num_layers):
        steps, outputs = list(sequence.unbind(0)), []
        for direction in range(directions):
            k = i * directions + direction
            ordered = steps[::-1] if direction else steps
            made, states[k] = _run_direction(mode, ordered, states[k], weights[k], has_biases)
            outputs.append(torch.stack(made[::-1] if direction else made, 0))
        sequence = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and i < num_layers - 1:
            sequence = torch.dropout(sequence, dropout, True)
    last = [torch.stack(same, 0) for same in zip(*states, strict=True)]
    if batch_first:
        sequence = sequence.transpose(0, 1) if mode == _LSTM else sequence.transpose_(0, 1)
    return sequence, *last


def _run_direction(
    mode: int, steps: list[Tensor], state: Any, weights: list[Tensor], has_biases: bool
) -> tuple[list[Tensor], Any]:
    of_input, of_hidden, *others = weights
    biases = others[:2] if has_biases else (None, None)
    projection = others[2 * has_biases] if len(others) > 2 * has_biases else None
    outputs = []
    for step in steps:
        products = linear(step, of_input), linear(state[0], of_hidden)
        if mode == _GRU:
            state = (aten._thnn_fused_gru_cell.default(*products, state[0], *biases)[0],)
        else:
            hidden, cell, _ = aten._thnn_fused_lstm_cell.default(*products, state[1], *biases)
            hidden = hidden if projection is None else torch.matmul(hidden, projection.t())
            state = hidden, cell
        outputs.append(state[0])
    return outputs, state
