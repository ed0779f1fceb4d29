"""Recurrent layers on the CPU: LSTM, GRU and RNN as eager mode computes them there.

Input: a call of one of torch's recurrent operators while operations are recorded. Output: its
result, from the operators that eager mode would run. Invariant: the operators, their arguments and
their order are those of C++ for CPU tensors (aten/src/ATen/native/RNN.cpp and mkldnn/RNN.cpp): an
LSTM runs oneDNN's operator where eager does; otherwise all steps of an input are multiplied at
once. For a fake, whose C++ device is not the CPU, C++ would do neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchfake._operators.operator_call import tensors_in
from torchfake._recording.arguments import have_values
from torchfake._torch import dispatch_keys, numerics
from torchfake._torch.kernels import linear
from torchfake.errors import RecordError

aten = torch.ops.aten
Redispatch = Callable[..., Any]
Hidden = tuple[Tensor, ...]
"""The state of one layer in one direction: ``(h,)``, or ``(h, c)`` of an LSTM."""

_LSTM_OF_ONEDNN = 2  # ideep::rnn_kind::LSTM


class Weights(NamedTuple):
    """The parameters of one layer in one direction."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    projection: Tensor | None  # of an LSTM


class Options(NamedTuple):
    """The arguments that all recurrent operators share."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool = False  # not an argument for packed sequences


Cell = Callable[[Tensor, Hidden, Weights], Hidden]
"""Computes one step, given the product of the step's input with the weights `ih`."""


def simple_cell(nonlinearity: Callable[[Tensor], Tensor]) -> Cell:
    def step(product: Tensor, hidden: Hidden, w: Weights) -> Hidden:
        return (nonlinearity(linear(hidden[0], w.hh, w.bias_hh).add_(product)),)

    return step


def gru_cell(product: Tensor, hidden: Hidden, w: Weights) -> Hidden:
    of_input = product.unsafe_chunk(3, 1)
    of_hidden = linear(hidden[0], w.hh, w.bias_hh).unsafe_chunk(3, 1)
    reset = of_hidden[0].add_(of_input[0]).sigmoid_()
    update = of_hidden[1].add_(of_input[1]).sigmoid_()
    new = of_input[2].add(of_hidden[2].mul_(reset)).tanh_()
    return ((hidden[0] - new).mul_(update).add_(new),)


def lstm_cell(product: Tensor, hidden: Hidden, w: Weights) -> Hidden:
    gates = linear(hidden[0], w.hh, w.bias_hh).add_(product).unsafe_chunk(4, 1)
    entry, forget, output = gates[0].sigmoid_(), gates[1].sigmoid_(), gates[3].sigmoid_()
    cell = (forget * hidden[1]).add_(entry * gates[2].tanh_())
    out = output * cell.tanh()
    return out if w.projection is None else torch.matmul(out, w.projection.t()), cell


# One layer in one direction.


class PlainLayer:
    """A layer on a sequence of batches of one size."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def __call__(
        self, sequence: Tensor, hidden: Hidden, w: Weights, backwards: bool
    ) -> tuple[Tensor, Hidden]:
        steps = list(linear(sequence, w.ih, w.bias_ih).unbind(0))
        outputs = []
        for step in reversed(steps) if backwards else steps:
            hidden = self._cell(step, hidden, w)
            outputs.append(hidden[0])
        return torch.stack(outputs[::-1] if backwards else outputs, 0), hidden


class PackedLayer:
    """A layer on a packed sequence, whose batches become smaller."""

    def __init__(self, cell: Cell, batch_sizes: list[int]) -> None:
        self._cell = cell
        self._sizes = batch_sizes

    def __call__(
        self, data: Tensor, hidden: Hidden, w: Weights, backwards: bool
    ) -> tuple[Tensor, Hidden]:
        steps = linear(data, w.ih, w.bias_ih).split(self._sizes)
        run = self._run_backwards if backwards else self._run_forwards
        outputs, last = run(steps, hidden, w)
        return torch.cat(outputs, 0), last

    def _run_forwards(
        self, steps: Sequence[Tensor], hidden: Hidden, w: Weights
    ) -> tuple[list[Tensor], Hidden]:
        outputs, ended, size = [], [], self._sizes[0]
        for step, next_size in zip(steps, self._sizes, strict=True):
            if next_size < size:  # the last sequences of the batch have ended
                ended.append(_rows(hidden, next_size, size))
                hidden = _rows(hidden, 0, next_size)
            size = next_size
            hidden = self._cell(step, hidden, w)
            outputs.append(hidden[0])
        return outputs, _concatenated([hidden, *ended[::-1]])

    def _run_backwards(
        self, steps: Sequence[Tensor], first: Hidden, w: Weights
    ) -> tuple[list[Tensor], Hidden]:
        outputs: list[Tensor] = []
        size = self._sizes[-1]
        hidden = _rows(first, 0, size)
        for step, next_size in zip(reversed(steps), reversed(self._sizes), strict=True):
            if next_size > size:
                hidden = _concatenated([hidden, _rows(first, size, next_size)])
            size = next_size
            hidden = self._cell(step, hidden, w)
            outputs.append(hidden[0])
        return outputs[::-1], hidden


def _rows(hidden: Hidden, start: int, stop: int) -> Hidden:
    return tuple(part.narrow(0, start, stop - start) for part in hidden)


def _concatenated(parts: list[Hidden]) -> Hidden:
    return tuple(torch.cat(same, 0) for same in zip(*parts, strict=True))


class OneDNNLayer:
    """A layer of an LSTM as a single operator."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __call__(
        self, sequence: Tensor, hidden: Hidden, w: Weights, backwards: bool
    ) -> tuple[Tensor, Hidden]:
        o = self._options
        biases = w.bias_ih, w.bias_hh
        if not o.has_biases:
            biases = w.ih.new_zeros(w.ih.shape), w.hh.new_zeros(w.hh.shape)
        kind: tuple[Any, ...] = [], _LSTM_OF_ONEDNN, hidden[0].shape[-1], o.num_layers
        flags = o.has_biases, o.bidirectional, o.batch_first, o.train
        args = (sequence, w.ih, w.hh, *biases, *hidden, backwards, *kind, *flags)
        output, h, c, _ = aten.mkldnn_rnn_layer.default(*args)
        return output, (h, c)


# All layers.


def run_layers(
    layer: Callable[..., tuple[Tensor, Hidden]],
    sequence: Tensor,
    hidden: list[Hidden],
    weights: list[Weights],
    options: Options,
) -> tuple[Tensor, list[Hidden]]:
    """The output of the last layer, and the last states of all, layer by layer."""
    directions = 2 if options.bidirectional else 1
    last: list[Hidden] = []
    for i in range(options.num_layers):
        outputs = []
        for direction in range(directions):
            k = i * directions + direction
            output, state = layer(sequence, hidden[k], weights[k], direction == 1)
            outputs.append(output)
            last.append(state)
        sequence = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        if options.dropout and options.train and i < options.num_layers - 1:
            sequence = torch.dropout(sequence, options.dropout, True)
    return sequence, last


def _weights_of(params: list[Tensor], options: Options, has_projections: bool) -> list[Weights]:
    count = 2 + 2 * options.has_biases + has_projections
    groups = [params[i : i + count] for i in range(0, len(params), count)]
    weights = []
    for ih, hh, *others in groups:
        bias_ih, bias_hh = others[:2] if options.has_biases else (None, None)
        projection = others[-1] if has_projections else None
        weights.append(Weights(ih, hh, bias_ih, bias_hh, projection))
    return weights


def recurrent(
    cell: Cell,
    sequence: Tensor,
    states: Hidden,
    params: list[Tensor],
    options: Options,
    batch_sizes: list[int] | None = None,
) -> tuple[Tensor, ...]:
    """Output and last states of a recurrent operator; with `batch_sizes`, of a packed sequence."""
    has_projections = len(states) == 2 and states[0].shape[2] != states[1].shape[2]
    layer: Any = PlainLayer(cell) if batch_sizes is None else PackedLayer(cell, batch_sizes)
    if options.batch_first:
        sequence = sequence.transpose(0, 1)
    is_plain_lstm = cell is lstm_cell and batch_sizes is None
    if is_plain_lstm and numerics.takes_onednn_lstm(sequence, states):
        layer = OneDNNLayer(options)
        sequence, states = sequence.contiguous(), tuple(s.contiguous() for s in states)
    hidden: list[Hidden] = list(zip(*(s.unbind(0) for s in states), strict=True))
    weights = _weights_of(params, options, has_projections)
    output, last = run_layers(layer, sequence, hidden, weights, options)
    if options.batch_first:  # of an LSTM alone it is a view
        output = output.transpose(0, 1) if cell is lstm_cell else output.transpose_(0, 1)
    return (output, *(torch.stack(parts, 0) for parts in zip(*last, strict=True)))


# The kernels.


def register_kernels() -> None:
    """Register the kernels of all recurrent operators."""
    cells = {
        aten.lstm: lstm_cell,
        aten.gru: gru_cell,
        aten.rnn_tanh: simple_cell(torch.tanh),
        aten.rnn_relu: simple_cell(torch.relu),
    }
    for packet, cell in cells.items():
        dispatch_keys.RECORDING_KEY.register(packet.input, _kernel(cell))
        dispatch_keys.RECORDING_KEY.register(packet.data, _kernel_of_packed(cell))
    backward = aten.mkldnn_rnn_layer_backward.default
    dispatch_keys.RECORDING_KEY.register(backward, refuse_onednn_backward)


def refuse_onednn_backward(redispatch: Redispatch, *args: Any) -> Any:
    """Refuse the backward pass on the CPU: it reads a workspace whose size only oneDNN knows."""
    if not _is_on_cpu(args):
        return redispatch(*args)
    raise RecordError(
        "the backward pass of an LSTM on the CPU cannot be recorded: it reads a workspace of "
        "oneDNN's. Run it after materialize_module, or the LSTM inside torch.backends.mkldnn.flags("
        "enabled=False)"
    )


def _kernel(cell: Cell) -> Callable[..., Any]:
    def kernel(
        redispatch: Redispatch, sequence: Tensor, states: Any, params: list[Tensor], *options: Any
    ) -> Any:
        if not _is_on_cpu((sequence, states, params)):
            return redispatch(sequence, states, params, *options)
        return recurrent(cell, sequence, _as_tuple(states), params, Options(*options))

    return kernel


def _kernel_of_packed(cell: Cell) -> Callable[..., Any]:
    def kernel(
        redispatch: Redispatch,
        data: Tensor,
        sizes: Tensor,
        states: Any,
        params: list[Tensor],
        *options: Any,
    ) -> Any:
        if not _is_on_cpu((data, states, params)):
            return redispatch(data, sizes, states, params, *options)
        return recurrent(cell, data, _as_tuple(states), params, Options(*options), sizes.tolist())

    return kernel


def _as_tuple(states: Any) -> Hidden:
    return (states,) if isinstance(states, Tensor) else tuple(states)


def _is_on_cpu(args: Any) -> bool:
    """Whether all tensors are on the CPU and have values: plain fakes have no bits to preserve."""
    return have_values(args) and all(t.device.type == "cpu" for t in tensors_in(args, {}))
