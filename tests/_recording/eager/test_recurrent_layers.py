"""Recurrent layers that run in a constructor: the bits of eager, whatever kernel that takes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle import assert_equals_eager, at_once
from torchfake import deferred_init, deferred_mode
from torchfake._torch import backends
from torchfake.errors import RecordError

LAYERS: dict[str, Any] = {
    "lstm": nn.LSTM,
    "lstm-projection": lambda *a, **k: nn.LSTM(*a, **k, proj_size=3),
    "gru": nn.GRU,
    "rnn-tanh": nn.RNN,
    "rnn-relu": lambda *a, **k: nn.RNN(*a, **k, nonlinearity="relu"),
}
SHAPES: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "dropout": 0.5, "batch_first": True},
]


class Runs(nn.Module):
    """Runs a recurrent layer in its constructor, and keeps what it gives."""

    def __init__(self, make: Any, dtype: torch.dtype, options: Any, packed: bool, grad: bool):
        super().__init__()
        self.layer = make(12, 20, **options).to(dtype)
        size = (4, 9, 12) if options.get("batch_first") else (9, 4, 12)
        sequence: Any = torch.randn(size, dtype=dtype)
        if packed:
            sequence = nn.utils.rnn.pack_padded_sequence(
                sequence, torch.tensor([9, 7, 7, 2]), batch_first=options.get("batch_first", False)
            )
        with torch.set_grad_enabled(grad):
            output, state = self.layer(sequence)
            output = output.data if packed else output
            if grad:
                output.float().square().sum().backward()
        self.register_buffer("output", output.detach())
        for i, part in enumerate(state if isinstance(state, tuple) else (state,)):
            self.register_buffer(f"state{i}", part.detach())
        for name, parameter in self.layer.named_parameters():
            if grad:
                self.register_buffer(f"grad_{name}", parameter.grad)
                parameter.grad = None


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_runs_in_a_constructor(name, dtype, packed):
    for options in SHAPES:
        for grad in (False, True):
            build = functools.partial(Runs, LAYERS[name], dtype, options, packed, grad)
            is_onednn = name == "lstm" and not packed and backends.has_onednn_lstm(dtype)
            if grad and is_onednn:
                with pytest.raises(RecordError, match="LSTM"):
                    deferred_init(build)
            else:
                assert_equals_eager(build, [at_once])


@pytest.mark.parametrize("make", [nn.GRU, nn.RNN, nn.LSTM])
def test_an_output_with_the_batch_first_is_a_view_where_it_is_one_in_eager(make):
    def run():
        output, _ = make(3, 4, batch_first=True)(torch.randn(2, 5, 3))
        return output._is_view(), output._version, output.stride(), type(output.grad_fn).__name__

    expected = run()
    with deferred_mode():
        assert run() == expected


class Reads(nn.Module):
    """Runs an LSTM, on batches of one too, and keeps its results; nothing is differentiated."""

    def __init__(self, size: tuple[int, ...], grad: bool, **options: Any):
        super().__init__()
        with torch.set_grad_enabled(grad):
            output, (hidden, cell) = nn.LSTM(6, 8, **options)(torch.randn(size))
        self.register_buffer("output", output.detach())
        self.register_buffer("hidden", hidden.detach())
        self.register_buffer("cell", cell.detach())
        self.register_buffer("scaled", torch.randn(3) * output.sum().item())


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("size", [(4, 6), (4, 1, 6), (1, 1, 6), (4, 3, 6)], ids=str)
def test_the_grad_mode_decides_which_kernel_onednn_takes(size, grad):
    for options in ({}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}):
        assert_equals_eager(functools.partial(Reads, size, grad, **options), [at_once])
