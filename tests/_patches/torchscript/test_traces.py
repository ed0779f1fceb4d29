"""``torch.jit.trace`` in a mode: eager's graphs, with real constants and without carriers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_mode, is_fake, materialize_tensor
from torchfake._torch.compiler import scripts
from torchfake.errors import TraceError

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations, and what the tracer tells
MODES = [fake_mode, deferred_mode]


class Sizes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.size(1)
        mask = torch.ones(length, x.shape[1]).tril()
        flat = x.view(x.size(0), -1) @ mask.reshape(length, -1)
        return flat[:, : length // 2] + torch.arange(length)[: length // 2]


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + torch.tensor([1.0, 2.0, 3.0, 4.0]) * 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x)[0]


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 4), (2, 4)),
    "sizes": (Sizes, (4, 4)),
    "constants": (lambda: nn.Sequential(Constants(), Constants()), (2, 4)),
    "norm": (lambda: nn.BatchNorm1d(4), (2, 4)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.Flatten()),
        (2, 3, 4, 4),
    ),
    "transposed": (lambda: nn.ConvTranspose1d(3, 4, 3), (2, 3, 8)),
    "lstm": (lambda: nn.LSTM(4, 3), (2, 2, 4)),
    "attention": (Attention, (3, 2, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (3, 2, 8)),
}


RECORDED_OTHERWISE = ("constants", "encoder")
"""Eager records a copy of a constant to the device that it is on, and attention as a whole."""


def trace(name: str, **options: Any) -> tuple[Any, Any]:
    """A trace, and what it returns."""
    make, size = LAYERS[name]
    torch.manual_seed(0)
    traced: Any = torch.jit.trace(make(), torch.randn(size), **options)
    found = traced(torch.randn(size))
    return traced, found[0] if isinstance(found, tuple) else found


def constants(traced: Any) -> list[torch.Tensor]:
    graphs = scripts.graphs_of(getattr(traced, "_c", traced))
    return [constant for graph in graphs for _, constant in scripts.tensor_constants(graph)]


def text(traced: Any) -> list[str]:
    """The nodes of a trace and of the modules inside it, without names."""
    graphs = map(str, scripts.graphs_of(traced._c))
    return [re.sub(r"___torch_mangle_\d+\.| #.*|%[\w.]+", "", each) for each in graphs]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LAYERS)
def test_a_trace_is_that_of_eager(name: str, mode: Any) -> None:
    expected, result = trace(name, check_trace=False)
    with mode():
        traced, found = trace(name, check_trace=False)
    assert is_fake(found)
    assert found.stride() == result.stride()
    assert not any(map(is_fake, constants(traced)))
    assert [c.tolist() for c in constants(traced)] == [c.tolist() for c in constants(expected)]
    if name not in RECORDED_OTHERWISE:
        assert text(traced) == text(expected)
    if mode is deferred_mode:
        assert torch.equal(materialize_tensor(found.detach()), result)


@pytest.mark.parametrize("name", LAYERS)
def test_traces_of_deferred_layers_are_checked(name: str) -> None:
    with deferred_mode():
        trace(name)


def test_a_check_of_unknown_values_is_refused() -> None:
    with fake_mode():
        with pytest.raises(TraceError, match=r"not known: pass check_trace=False"):
            trace("attention")
        trace("norm")


@pytest.mark.parametrize("mode", MODES)
def test_a_real_module_is_traced_without_fakes(mode: Any) -> None:
    module, x = Constants(), torch.randn(2, 4)
    with mode():
        traced: Any = torch.jit.trace(module, torch.randn(2, 4), check_trace=False)
        assert "1  2  3  4" in str(traced.graph.copy()) + "".join(text(traced))
    assert torch.equal(traced(x), module(x))
    assert "meta" not in "".join(text(traced))


def test_a_constant_of_unknown_value_is_refused() -> None:
    with fake_mode():
        weight = torch.randn(200, 200)
        with pytest.raises(TraceError, match=r"float32\[200, 200\] on cpu, made by .* a buffer"):
            torch.jit.trace(lambda x: x @ weight, torch.ones(2, 200), check_trace=False)
    with deferred_mode():
        weight = torch.ones(200, 200)
        traced = torch.jit.trace(lambda x: x @ weight, torch.ones(2, 200), check_trace=False)
    assert traced(torch.ones(2, 200)).unique().tolist() == [200.0]


def test_a_trace_that_fails_leaves_nothing_behind() -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise KeyError(x.size(0))

    with fake_mode():
        with pytest.raises(KeyError):
            torch.jit.trace(failing, torch.ones(2))
        assert not scripts.is_tracing()
        trace("sizes")


def test_values_of_constants_are_printed_in_a_mode() -> None:
    with warnings.catch_warnings():
        traced = torch.jit.trace(lambda x: x + torch.tensor([1.0, 2.0]), torch.ones(2))
    expected = str(traced.graph)
    with fake_mode():
        assert str(traced.graph) == expected


def test_a_dict_is_made_at_one_place() -> None:
    """The check of a trace compares the lines at which constants were made."""
    with fake_mode():
        trace = torch.jit.trace(lambda x: {"a": x}, (torch.ones(3),), strict=False)
        assert trace(torch.ones(3))["a"].tolist() == [1.0, 1.0, 1.0]
