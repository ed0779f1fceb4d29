"""Meta kernels of operators that only CUDA has, and of operators whose results differ on CUDA.

Input: meta tensors. Output: results of the shapes, dtypes and strides that CUDA's kernel gives.
Invariant: no values are read; each docstring names the C++ file that is followed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import register_meta_kernel

aten = torch.ops.aten


@register_meta_kernel(aten.log_sigmoid_forward.default, devices=("cuda",))
def log_sigmoid(input: Tensor) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/cuda/Activation.cpp: nothing is kept for the backward pass."""
    return torch.empty_like(input), input.new_empty(0)


@register_meta_kernel(aten.cudnn_grid_sampler.default, devices=("cuda",))
def grid_sampler(input: Tensor, grid: Tensor) -> Tensor:
    """aten/src/ATen/native/cudnn/GridSampler.cpp."""
    return input.new_empty((*input.shape[:2], *grid.shape[1:3]))


@register_meta_kernel(aten.cudnn_grid_sampler_backward.default, devices=("cuda",))
def grid_sampler_backward(input: Tensor, grid: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/cudnn/GridSampler.cpp: both gradients are contiguous."""
    return input.new_empty(input.shape), grid.new_empty(grid.shape)


@register_meta_kernel(aten._thnn_fused_lstm_cell.default, devices=("cuda",))
def lstm_cell(
    gates: Tensor, _of_hidden: Tensor, cell: Tensor, *_biases: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """aten/src/ATen/native/cuda/RNN.cu: the workspace holds the gates."""
    return cell.new_empty(cell.shape), cell.new_empty(cell.shape), gates.new_empty(gates.shape)


@register_meta_kernel(aten._thnn_fused_lstm_cell_backward_impl.default, devices=("cuda",))
def lstm_cell_backward(
    _grad_hidden: Any, _grad_cell: Any, cell: Tensor, _: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Any, ...]:
    """aten/src/ATen/native/cuda/RNN.cu: the gradients of the gates, the cell and the biases."""
    gates = workspace.new_empty(workspace.shape)
    return gates, cell.new_empty(cell.shape), gates.sum(0) if has_bias else None


@register_meta_kernel(aten._thnn_fused_gru_cell.default, devices=("cuda",))
def gru_cell(_gates: Tensor, _of_hidden: Tensor, state: Tensor, *_biases: Any) -> tuple[Any, ...]:
    """aten/src/ATen/native/cuda/RNN.cu: the workspace has the gates, the state and its product."""
    batch, size = state.shape
    return state.new_empty(state.shape), state.new_empty((batch, 5 * size))


@register_meta_kernel(aten._thnn_fused_gru_cell_backward.default, devices=("cuda",))
def gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    """aten/src/ATen/native/cuda/RNN.cu: gradients of input and hidden gates, state and biases."""
    batch, size = grad.shape
    gates = [workspace.new_empty((batch, 3 * size)) for _ in range(2)]
    biases = [g.sum(0) if has_bias else None for g in gates]
    return *gates, grad.new_empty(grad.shape), *biases


@register_meta_kernel(aten._cudnn_ctc_loss.default, aten._cudnn_ctc_loss.Tensor, devices=("cuda",))
def ctc_loss(log_probs: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/cudnn/LossCTC.cpp: the losses and their gradient."""
    return log_probs.new_empty(log_probs.shape[1]), log_probs.new_empty(log_probs.shape)


_LSTM, _GRU = 2, 3  # cudnnRNNMode_t
_KEPT = {_LSTM: 5, _GRU: 4}
"""The numbers that a backward pass needs of each step, as a multiple of the hidden size: the gates,
and the cell of an LSTM or the product of a GRU's state. For an RNN, one."""


@register_meta_kernel(aten._cudnn_rnn.default, devices=("cuda",))
def recurrent_layer(
    input: Tensor,
    weights: list[Tensor],
    _num_weights: int,
    buffer: Tensor | None,
    state: Tensor,
    cell: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    _dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:
    """aten/src/ATen/native/cudnn/RNN.cpp. Only cuDNN knows the size of its reserve. Here, the
    reserve has what a backward pass needs at least: the gates of each step, and the output of each
    layer but the last. The buffer of all weights is the memory of the weights.
    """
    directions = 2 if bidirectional else 1
    out_size = directions * (proj_size or hidden_size)
    num_steps = math.prod(input.shape[:-1])  # of all sequences together
    kept = directions * num_layers * _KEPT.get(mode, 1) * hidden_size + (num_layers - 1) * out_size
    num_bytes = num_steps * kept * input.dtype.itemsize if train else 0
    if buffer is None:
        buffer = weights[0].detach()
    return (
        input.new_empty((*input.shape[:-1], out_size)),
        state.new_empty(state.shape),
        input.new_empty(0) if cell is None else cell.new_empty(cell.shape),
        input.new_empty(num_bytes, dtype=torch.uint8),
        buffer,
    )


@register_meta_kernel(aten._cudnn_rnn_backward.default, devices=("cuda",))
def recurrent_layer_backward(
    input: Tensor,
    weights: list[Tensor],
    _num_weights: int,
    _buffer: Tensor,
    state: Tensor,
    cell: Tensor | None,
    *rest: Any,
) -> tuple[Any, ...]:
    """aten/src/ATen/native/cudnn/RNN.cpp: gradients of input, state, cell and weights."""
    *_, wanted = rest
    of_weights = [w.new_empty(w.shape) for w in weights] if wanted[3] else []
    of_cell = input.new_empty(0) if cell is None else cell.new_empty(cell.shape)
    return input.new_empty(input.shape), state.new_empty(state.shape), of_cell, of_weights
