"""``fx.symbolic_trace``: the oracle is torch's trace of the real model, and its ``ShapeProp``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.passes.shape_prop import ShapeProp

from tests._tracing.conftest import (
    CPU,
    IGNORED_WARNINGS,
    assert_same_bits,
    flat,
    state_of,
    tensors_on,
)
from torchfake import deferred_init, deferred_mode, fake_like, fx, is_deferred, materialize_module

pytestmark = IGNORED_WARNINGS


class Symbolic(nn.Module):
    """Writes a buffer, counts its calls, and computes constants from a buffer and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.tied = self.layers[0]
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("weights", torch.randn(8))
        self.table = torch.ones(8)
        self.calls = 0

    def forward(self, x: torch.Tensor, flag: bool = False, *, scale: float = 1.0) -> Any:
        self.calls += 1
        self.steps.add_(1)
        hidden = self.layers(x) * self.weights.softmax(0)
        hidden = (hidden + (self.tied(x) if flag else self.table[:3].sum())) * scale
        return hidden, hidden.shape, x.unbind(0)


def propagated(traced: torch.fx.GraphModule) -> list[Any]:
    rows = []
    for node in traced.graph.nodes:
        meta = node.meta.get("tensor_meta")
        rows.append((node.name, node.op, str(node.target), meta, node.meta.get("type")))
    return rows


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("kind", ["real", "fake", "deferred"])
def test_symbolic_trace(kind: str, flag: bool) -> None:
    x = torch.randn(3, 4)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Symbolic()

    expected = torch.fx.symbolic_trace(build(), {"flag": flag})
    ShapeProp(expected).propagate(x, flag)
    builders = {"real": build, "fake": lambda: fake_like(build()), "deferred": None}
    chosen = builders[kind]
    module = deferred_init(build) if chosen is None else chosen()
    before = state_of(module)
    traced = fx.symbolic_trace(module, x, concrete_args={"flag": flag})
    assert state_of(module) == before
    assert propagated(traced) == propagated(expected)
    assert traced.get_submodule("layers.0") is module.layers[0]
    assert traced.training == module.training
    for node in traced.graph.nodes:
        for value in flat(node.meta["val"]):
            assert value.device == CPU
    if kind == "deferred":
        materialize_module(traced)
    if kind != "fake":
        assert_same_bits(build()(x, flag), traced(x, flag))


def test_symbolic_trace_on_fake_cuda() -> None:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + torch.arange(4, device="cuda")

    with deferred_mode(fake_cuda=2):
        module = Made().to("cuda:0")
    traced = fx.symbolic_trace(module, fake_like(torch.ones(2, 4), device="cuda"))
    assert {value.device for value in tensors_on(traced)} == {torch.device("cuda", 0)}
    (constant,) = traced.graph.find_nodes(op="get_attr")
    assert is_deferred(getattr(traced, constant.target))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_symbolic_trace_of_writes_and_of_old_weight_norm() -> None:
    """A buffer is written from a proxy; an attribute has a gradient history."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.utils.weight_norm(nn.Linear(4, 4))
            self.register_buffer("last", torch.zeros(2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last.copy_(x)
            self.given = x
            return torch.cat([self.last, self.layer(x)])

    x = torch.ones(2, 4)
    expected, module = torch.fx.symbolic_trace(Keeps()), deferred_init(Keeps)
    before = state_of(module)
    traced = fx.symbolic_trace(module, x)
    assert [n.name for n in traced.graph.nodes] == [n.name for n in expected.graph.nodes]
    assert state_of(module) == before
    assert not hasattr(module, "given")


def test_symbolic_trace_by_name_and_of_functions() -> None:
    def function(x: torch.Tensor, *rest: Any, scale: Any = 2) -> Any:
        return x * scale + rest[0]

    ones = torch.ones(3)
    traced = fx.symbolic_trace(function, ones, ones)
    assert [tuple(t.shape) for t in tensors_on(traced)] == [(3,)] * 6
    shared = fx.symbolic_trace(lambda x, y: x + y, y=ones, x=ones.double())
    assert {t.dtype for t in tensors_on(shared)} == {torch.float32, torch.float64}
    assert not any("val" in node.meta for node in fx.symbolic_trace(nn.ReLU()).graph.nodes)
