"""The module that allocates, in the forward pass, in the backward pass and in recomputation."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from torch import nn

from tests.inspect.small_models import model_and_inputs
from torchfake.inspect import estimate, summary


def test_backward_and_recomputation_have_their_modules() -> None:
    model, inputs = model_and_inputs("llama")
    found = estimate(model, inputs, mode="training")
    lives = found.lives
    backward = {lives.module[i] for i in np.flatnonzero(lives.phase == 2)}
    assert {"model.layers.0.mlp.act_fn", "model.layers.2.self_attn.q_proj"} <= backward


def test_a_module_whose_error_was_caught_is_no_longer_running() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(5, 6)
            self.weight = nn.Parameter(torch.ones(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(RuntimeError):
                self.inner(x)
            return x @ self.weight

    found = estimate(Tries(), torch.ones(2, 3), mode="forward")
    assert found.by_module[""]["activations"] == 2 * 4 * 4


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(8, 8, bias=False), nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x @ self.weight).relu()


class Wrapped(Inner):
    @torch.no_grad()
    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return super().forward(*args)


class Calls(nn.Module):
    """Calls its modules by their ``forward``, and as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.layers = Inner(), nn.Linear(8, 8), nn.ModuleList()
        self.layers.extend(Inner() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head.forward(self.first.forward(x) + 1)
        for layer in self.layers:
            x = layer.forward(x)
        return self.first(x)


def test_modules_that_are_called_by_their_forward_have_their_flops() -> None:
    x = torch.ones(2, 8, requires_grad=True)
    found = summary(Calls(), x).flops
    once = 2 * 2 * 8 * 8
    assert found == {
        "": (9 * once, 18 * once),
        "first": (4 * once, 8 * once),
        "first.linear": (2 * once, 4 * once),
        "head": (once, 2 * once),
        "layers": (4 * once, 8 * once),
        "layers.0": (2 * once, 4 * once),
        "layers.0.linear": (once, 2 * once),
        "layers.1": (2 * once, 4 * once),
        "layers.1.linear": (once, 2 * once),
    }


def test_a_decorated_forward_that_is_called_directly() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrapped, self.last = Wrapped(), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.wrapped.forward(x))

    found = summary(Outer(), torch.ones(2, 8)).flops
    assert found["wrapped"] == (2 * 256, 0)
    assert found["wrapped.linear"] == (256, 0)
    assert found["last"] == (256, 256)


def test_the_locals_of_a_function_that_asks_for_them_are_left_alone() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = locals()
            found.pop("self")
            result = self.linear(x) @ torch.ones(8, 8)
            assert [*found] == ["x"]
            return result

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.asks = Asks()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.asks.forward(x)

    assert summary(Outer(), torch.ones(2, 8)).flops[""].forward == 512
