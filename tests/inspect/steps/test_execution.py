"""Running a step: gradients are fake, and only of fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchfake.errors import InputsError
from torchfake.inspect import estimate


def test_real_tensors_get_no_fake_gradients() -> None:
    head, net = nn.Linear(3, 1), nn.Linear(3, 3)
    with pytest.raises(InputsError, match=r"shape \[1, 3\] that requires a gradient"):
        estimate(net, torch.ones(2, 3), optimizer="sgd", loss=lambda out: head(out).sum())
    assert head.weight.grad is None
    inner = net.forward
    net.forward = lambda x: inner(x) * 2  # a closure over the real parameters
    with pytest.raises(InputsError, match=r"shape \[3, 3\] that requires a gradient"):
        estimate(net, torch.ones(2, 3), optimizer="sgd")
    assert net.weight.grad is None


def test_losses_that_cannot_be_trained() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(InputsError, match="tensor with one element, not shape"):
        estimate(nn.Linear(3, 4), x, loss=lambda out: out)
    with pytest.raises(InputsError, match="no output tensor requires a gradient"):
        estimate(nn.Linear(3, 4).requires_grad_(False), x, mode="training")
