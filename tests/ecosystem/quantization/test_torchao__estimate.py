"""Estimates of torchao's optimizer that keeps its state on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchao.optim import CPUOffloadOptimizer

from torchfake import estimate, fake_mode
from torchfake.errors import InputsError

WEIGHTS, BIASES = 2 * 64 * 64 * 4, 2 * 64 * 4  # biases are too small to be offloaded


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))


def test_a_function_that_makes_it() -> None:
    found = estimate(
        model(),
        torch.empty(4, 64),
        optimizer=lambda parameters: CPUOffloadOptimizer(parameters, torch.optim.AdamW),
        gpu="h100-80gb",
    )
    on_cpu = 4 * WEIGHTS  # weights, gradients and both moments
    assert on_cpu <= found.elsewhere["cpu"] < on_cpu + 200
    state = found.timeline.num_bytes[-1][found.timeline.categories.index("optimizer state")]
    assert 2 * BIASES <= state < 2 * BIASES + 3000  # rounded up to 512 bytes


@pytest.mark.parametrize("offload_gradients", [False, True])
def test_a_step_of_ones_own(offload_gradients: bool) -> None:
    with fake_mode(fake_cuda="h100-80gb"):
        module, x = model().cuda(), torch.empty(4, 64, device="cuda")
        optimizer = CPUOffloadOptimizer(
            module.parameters(), torch.optim.AdamW, offload_gradients=offload_gradients
        )

    def step(x: torch.Tensor) -> None:
        module(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = estimate(step, x)
    assert 4 * WEIGHTS <= found.elsewhere["cpu"] < 4 * WEIGHTS + 200
    held = found.peak.by_category["gradients"]
    assert held < WEIGHTS if offload_gradients else held >= WEIGHTS
    with pytest.raises(InputsError, match="holds other optimizers"):
        estimate(module, x, optimizer=optimizer)
