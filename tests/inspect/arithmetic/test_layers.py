"""FLOPs of operators that are whole layers, against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.inspect.arithmetic.counted import counted
from torchfake import estimate, fake_mode
from torchfake.inspect import summary
from torchfake.inspect.arithmetic.formulas import flops_of

STEPS, BATCH, WIDE, HIDDEN = 16, 4, 24, 32
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def timed(module: nn.Module, *inputs: Any, mode: str = "training") -> Any:
    return estimate(module, *inputs, gpu="h100-80gb", mode=mode).schedule


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers(name: str, bidirectional: bool) -> None:
    with fake_mode():
        module = getattr(nn, name)(WIDE, HIDDEN, 2, bidirectional=bidirectional)
        x = torch.empty(STEPS, BATCH, WIDE)
    directions = 1 + bidirectional
    matrices = HIDDEN * (WIDE + HIDDEN) + HIDDEN * (directions * HIDDEN + HIDDEN)
    once = 2 * STEPS * BATCH * GATES[name] * directions * matrices
    for device in ("cuda", "cpu"):
        found = summary(module, x, device=device).flops[""]
        assert found.forward == once
    assert summary(module, x, device="cuda").flops[""].backward == 2 * once
    schedule = timed(module, x)
    assert schedule.flops == schedule.model_flops == 3 * once
    assert schedule.seconds_by_kind["recurrent layers"] > 0


def test_projected_and_packed_sequences() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(WIDE, HIDDEN, proj_size=8)

        def forward(self, x: Any, lengths: Any) -> Any:
            return self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths.cpu()))[0].data

    with fake_mode():
        module, x = Packed(), torch.empty(STEPS, 2, WIDE)
    lengths = torch.tensor([STEPS, 5])
    matrices = 4 * HIDDEN * (WIDE + 8) + 8 * HIDDEN
    found = summary(module, x, lengths, device="cuda").flops[""]
    assert found.forward == 2 * (STEPS + 5) * matrices


def test_recurrent_layers_take_the_time_of_their_products() -> None:
    """Steps follow each other, so each has only the rows of the batch."""
    with fake_mode():
        module, x = nn.LSTM(1024, 1024, 4), torch.empty(512, 64, 1024)
    schedule = timed(module, x)
    peak = 989.4e12 / 2  # of TF32, which cuDNN's recurrent layers use by default
    assert 3 * schedule.flops / peak < schedule.seconds < 100 * schedule.flops / peak


def attention_flops(width: int, queries: int, keys: int) -> int:
    projections = 2 * width * width * (2 * queries + 2 * keys)
    return projections + 4 * queries * keys * width


@pytest.mark.parametrize("cross", [False, True])
def test_frozen_attention(cross: bool) -> None:
    """In evaluation without gradients, one operator does all of it."""
    with fake_mode():
        layer = nn.MultiheadAttention(64, 4, batch_first=True).eval().requires_grad_(False)
        x = torch.empty(1, 10, 64)
        inputs = (x, torch.empty(1, 12, 64), torch.empty(1, 12, 64)) if cross else (x, x, x)
    expected = attention_flops(64, 10, 12 if cross else 10)
    assert summary(layer, *inputs, device="cuda").flops[""] == (expected, 0)
    schedule = timed(layer, *inputs, mode="inference")
    assert schedule.flops == expected


def test_frozen_encoders() -> None:
    with fake_mode():
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 3).eval().requires_grad_(False)
        x = torch.empty(1, 10, 64)
    expected = 3 * (attention_flops(64, 10, 10) + 2 * 10 * 2 * 64 * 128)
    assert summary(encoder, x, device="cuda").flops[""] == (expected, 0)
    assert timed(encoder, x, mode="inference").flops == expected


def test_the_fast_path_of_an_encoder_layer() -> None:
    """Called without hooks, as in a program of its own."""
    with fake_mode(fake_cuda="h100-80gb"):
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().eval()
    with torch.no_grad():
        found = counted(layer, (2, 10, 64))
    expected = 2 * attention_flops(64, 10, 10) + 2 * 2 * 10 * 2 * 64 * 128
    assert found == {"aten._transformer_encoder_layer_fwd": expected}


@pytest.mark.parametrize("groups", [1, 4, 32])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_grouped_convolutions_backward(groups: int, transposed: bool, dims: int) -> None:
    """As many FLOPs as forward for each of the two gradients."""
    function = getattr(F, f"conv{'_transpose' * transposed}{dims}d")
    channels, kernel, sizes = 32, (3,) * dims, (8,) * dims
    weight = (channels, channels // groups, *kernel)
    found = counted(
        lambda x, w: function(x, w, groups=groups, stride=2), (2, channels, *sizes), weight
    )
    positions = 8**dims if transposed else 3**dims
    once = 2 * 2 * positions * channels * (channels // groups) * 3**dims
    assert found == {"aten.convolution": once, "aten.convolution_backward": 2 * once}


def test_the_gradient_of_the_weights_alone() -> None:
    with fake_mode():
        layer, x = nn.Conv2d(8, 8, 3, groups=8), torch.empty(2, 8, 10, 10)
    for device in ("cpu", "cuda"):
        found = summary(layer, x, device=device).flops[""]
        assert found == (2 * 2 * 64 * 8 * 9, 2 * 2 * 64 * 8 * 9)


@pytest.mark.parametrize("name", ["cudnn_convolution_relu", "conv_depthwise3d", "slow_conv3d"])
def test_kernels_that_fakes_do_not_run(name: str) -> None:
    x, w, out = (
        torch.empty(s, device="meta") for s in [(2, 8, 10, 9, 7), (4, 8, 3, 3, 3), (2, 4, 10, 9, 7)]
    )
    found = flops_of(getattr(torch.ops.aten, name).default, (x, w), {}, out)
    assert found == (2 * 2 * 10 * 9 * 7 * 4 * 8 * 27, 0)


def test_transposed_kernels_that_fakes_do_not_run() -> None:
    x, w, out = (
        torch.empty(s, device="meta") for s in [(2, 8, 5, 5), (8, 4, 3, 3), (2, 4, 11, 11)]
    )
    found = flops_of(torch.ops.aten.cudnn_convolution_transpose.default, (x, w), {}, out)
    assert found == (2 * 2 * 25 * 8 * 4 * 9, 0)
