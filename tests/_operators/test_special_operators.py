"""Operators with a handler."""

import pytest
import torch
from torch import nn

from tests.conftest import unknown
from torchfake import deferred_mode, fake_mode, materialize_tensor
from torchfake.errors import UnknownValueError


def test_torchs_own_checks_pass():
    with fake_mode():
        torch.distributions.Beta(torch.rand(3), torch.rand(3)).sample()
        with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
            torch.randn(3, requires_grad=True).square().sum().backward()


@pytest.mark.filterwarnings("ignore")
def test_transformer_encoder_with_a_padding_mask():
    def program():
        layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        mask = torch.zeros(2, 3, dtype=torch.bool)
        with torch.no_grad():
            return nn.TransformerEncoder(layer, 1).eval()(torch.randn(2, 3, 8), None, mask).shape

    expected = program()
    with fake_mode():
        assert program() == expected


def test_a_known_mask_selects_from_unknown_values() -> None:
    with fake_mode():
        x, mask = torch.randn(4, 2), torch.tensor([True, False, True, True])
        assert x[mask].shape == (3, 2)
        assert x.masked_select(mask[:, None]).shape == (6,)
        with pytest.raises(IndexError, match="shape of the mask"):
            x[mask[:3]]


def test_a_mask_that_does_not_fit_is_refused_before_it_is_read() -> None:
    with fake_mode(), pytest.raises(IndexError, match=r"shape of the mask \[2\] at index 0"):
        torch.arange(12).view(3, 4)[torch.tensor([True, True])]


def test_what_is_the_same_memory_is_equal() -> None:
    with fake_mode() as mode:
        numbers = (unknown(3, 4) > 0).long()
        assert torch.equal(numbers, numbers.view(3, 4))
        assert not mode.answers
        x = unknown(3, 4)
        assert torch.equal(x, x.detach())
        assert [a.answered_by for a in mode.answers] == ["finiteness"]
        for other in (x.clone(), x.view(12)[:12].view(3, 4).neg(), x.flip(0)):
            with pytest.raises(UnknownValueError):
                torch.equal(x, other)
        nan = torch.full((3,), float("nan"))
        assert not torch.equal(nan, nan)


def test_tensors_that_are_not_quantized_are_dequantized_to_floats():
    with fake_mode():
        floats, half = torch.ones(2), torch.ones(2).half()
        assert floats.dequantize() is floats
        assert half.dequantize().dtype == torch.float32
        assert torch.tensor([1, 2]).dequantize().tolist() == [1.0, 2.0]
    with deferred_mode():
        drawn = torch.randn(3).half().dequantize()
    assert drawn.dtype == materialize_tensor(drawn).dtype == torch.float32
