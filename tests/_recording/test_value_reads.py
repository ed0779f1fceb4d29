"""Values that are read while recording are those of eager mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests._recording.conftest import live_ops
from tests.oracle import assert_same
from torchfake import (
    deferred_init,
    deferred_mode,
    is_deferred,
    materialize_module,
    materialize_tensor,
)


def test_reads_of_values() -> None:
    """They are those of eager mode, and operations after them are recorded."""

    def build() -> nn.Module:
        module = nn.Linear(8, 8)
        scale = module.weight.detach().abs().max().item()
        if module.bias.mean() > 0:
            scale += 1
        with torch.no_grad():
            module.weight.div_(scale)
            module.bias.copy_(torch.tensor(module.weight[0].tolist()))
            module.bias[module.bias > 0.5] = 0
        module.register_buffer("where", (module.weight > 0.5).nonzero())
        module.register_buffer("table", torch.from_numpy(module.bias.detach().numpy() * 2))
        return module

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    module = deferred_init(build)
    assert is_deferred(module.weight)
    assert_same(eager, materialize_module(module))


def test_reading_a_bias_does_not_compute_the_weight() -> None:
    """The weight would take 40 GB."""
    module = deferred_init(nn.Linear, 100_000, 100_000)
    module.bias.data.fill_(2)
    assert module.bias[:3].tolist() == [2, 2, 2]


def test_a_deferred_tensor_copied_into_a_real_one() -> None:
    """Its values are computed; it stays deferred."""
    real = torch.zeros(3)
    with deferred_mode():
        made = torch.ones(3) * 2
    real.copy_(made)
    assert real.tolist() == [2, 2, 2]
    assert is_deferred(made)


def test_optimizer_steps_on_deferred_parameters() -> None:
    """Gradients and steps are recorded as any other operation."""

    def train(module: nn.Module) -> Any:
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            module(torch.ones(2, 3)).pow(2).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        return optimizer

    torch.manual_seed(0)
    eager = nn.Linear(3, 2)
    train(eager)
    torch.manual_seed(0)
    module = deferred_init(nn.Linear, 3, 2)
    train(module)
    assert_same(eager, materialize_module(module))


def test_optimizer_state_that_is_materialized_with_its_module() -> None:
    """Steps on it have the values of eager mode. Once it is materialized, nothing is recorded."""

    def train(layer: nn.Module, optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            layer(torch.ones(2, 3)).pow(2).sum().backward()
            optimizer.step()

    def start(layer: nn.Module) -> Any:
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        train(layer, optimizer, 1)
        optimizer.zero_grad()
        return optimizer

    torch.manual_seed(0)
    eager = nn.Linear(3, 2)
    expected = start(eager)
    torch.manual_seed(0)
    layer = deferred_init(nn.Linear, 3, 2)
    optimizer = start(layer)
    materialize_module(layer)
    train(eager, expected, 2)
    train(layer, optimizer, 2)
    assert_same(eager, layer)
    for state in optimizer.state.values():
        for value in state.values():
            materialize_tensor(value)
    before = live_ops()
    train(eager, expected, 5)
    train(layer, optimizer, 5)
    assert live_ops() == before
    assert_same(eager, layer)
    for one, other in zip(expected.state.values(), optimizer.state.values(), strict=True):
        assert torch.equal(other["exp_avg_sq"], one["exp_avg_sq"])
