"""spikingjelly: spiking neurons, whose operators have a derivative for the CPU alone."""

from __future__ import annotations

import pytest
import torch
from spikingjelly.activation_based import functional, layer, neuron
from torch import nn

from tests.ecosystem.families import assert_family

NEURONS = ("IFNode", "LIFNode", "ParametricLIFNode", "QIFNode", "EIFNode", "IzhikevichNode")


class Network(nn.Module):
    """A spiking network that is run over four steps."""

    def __init__(self, name: str, step_mode: str) -> None:
        super().__init__()
        make = getattr(neuron, name)
        self.layers = nn.Sequential(
            layer.Conv2d(2, 4, 3, padding=1), layer.BatchNorm2d(4), make(),
            layer.AvgPool2d(2), layer.Flatten(), layer.Linear(16, 3), make(),
        )  # fmt: skip
        self.step_mode = step_mode
        functional.set_step_mode(self.layers, step_mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functional.reset_net(self.layers)
        if self.step_mode == "m":
            return self.layers(x)  # type: ignore[no-any-return]
        return torch.stack([self.layers(step) for step in x])


@pytest.mark.parametrize("step_mode", ["s", "m"])
@pytest.mark.parametrize("name", NEURONS)
def test_networks(name: str, step_mode: str) -> None:
    assert_family(lambda: Network(name, step_mode), lambda: (torch.randn(4, 2, 2, 4, 4),))
