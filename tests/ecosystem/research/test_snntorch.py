"""snntorch: spiking neurons with surrogate gradients and learned decay."""

from __future__ import annotations

from typing import Any

import pytest
import snntorch
import torch
from snntorch import surrogate
from torch import nn

from tests.ecosystem.families import assert_family

NEURONS: dict[str, Any] = {
    "Leaky": lambda: snntorch.Leaky(beta=0.9, spike_grad=surrogate.fast_sigmoid()),
    "learned": lambda: snntorch.Leaky(beta=torch.rand(8), learn_beta=True, learn_threshold=True),
    "Synaptic": lambda: snntorch.Synaptic(alpha=0.9, beta=0.8),
    "Alpha": lambda: snntorch.Alpha(alpha=0.9, beta=0.8),
    "Lapicque": lambda: snntorch.Lapicque(R=5.1, C=5e-3, time_step=1e-3),
    "RLeaky": lambda: snntorch.RLeaky(beta=0.9, linear_features=8),
    "RSynaptic": lambda: snntorch.RSynaptic(alpha=0.9, beta=0.8, linear_features=8),
}


class Network(nn.Module):
    """A spiking layer that is run over three steps."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 8)
        self.neuron = NEURONS[name]()
        snntorch.SpikingNeuron.instances.clear()  # a list of every neuron that was ever made

    def forward(self, x: torch.Tensor) -> Any:
        state = self.neuron.reset_mem()
        state = state if isinstance(state, tuple) else (state,)
        spikes = []
        for step in x:
            spike, *state = self.neuron(self.linear(step), *state)
            spikes.append(spike)
        return torch.stack(spikes), state[-1]


@pytest.mark.parametrize("name", NEURONS)
def test_networks(name: str) -> None:
    assert_family(lambda: Network(name), lambda: (torch.randn(3, 2, 5),))
