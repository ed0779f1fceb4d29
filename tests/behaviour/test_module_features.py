"""Parametrizations, lazy modules and hooks work as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.behaviour.conftest import linear, network
from tests.conftest import (
    assert_inside,
    assert_outlives,
    describe,
)
from torchfake import fake_mode


def old_style(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrap(module: nn.Module) -> nn.Module:
        with pytest.warns(FutureWarning):
            return function(module)

    return wrap


NORMS: dict[str, Callable[[nn.Module], Any]] = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
    "orthogonal_cayley": lambda m: nn.utils.parametrizations.orthogonal(
        m, orthogonal_map="cayley", use_trivialization=False
    ),
    "old_weight_norm": old_style(nn.utils.weight_norm),
    "old_spectral_norm": nn.utils.spectral_norm,
    "custom": lambda m: nn.utils.parametrize.register_parametrization(m, "weight", Symmetric()),
}


class Symmetric(nn.Module):
    """A parametrization of the user's own, without an inverse."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).mT


@pytest.mark.parametrize("name", NORMS)
def test_parametrizations(name: str) -> None:
    """Parametrizations are registered and trained, after the mode and inside it."""

    def build() -> tuple[nn.Module, torch.Tensor]:
        return nn.Linear(4, 4), torch.randn(2, 4)

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        module = NORMS[name](module)
        out = module(x)
        out.sum().backward()
        return module, out, list(module.state_dict())

    assert_outlives(build, use)
    assert_inside(lambda: use(*build()))


def test_parametrizations_are_removed() -> None:
    """``remove_parametrizations`` leaves what eager leaves."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        module = nn.utils.parametrizations.weight_norm(module)
        nn.utils.parametrize.remove_parametrizations(module, "weight")
        return module, module(x)

    assert_outlives(linear, use)


LAZY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.LazyLinear(5), (2, 4)),
    "stack": (lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyBatchNorm1d()), (2, 4)),
    "conv": (lambda: nn.Sequential(nn.LazyConv2d(5, 3), nn.LazyInstanceNorm2d()), (2, 3, 8, 8)),
    "conv_transpose": (lambda: nn.LazyConvTranspose1d(4, 2), (2, 3, 8)),
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_modules_dry_run(name: str) -> None:
    """A dry run gives lazy modules their parameters, inside and after the mode."""
    make, shape = LAZY[name]

    def run(module: nn.Module, x: torch.Tensor) -> Any:
        out = module(x)
        out.sum().backward()
        return module, out, [type(m) for m in module.modules()]

    assert_outlives(lambda: (make(), torch.randn(shape)), run)
    assert_inside(lambda: run(make(), torch.randn(shape)))


def test_lazy_module_before_its_dry_run() -> None:
    """An uninitialized parameter raises what eager's raises when it is used or its shape read."""
    with fake_mode():
        lazy = nn.LazyLinear(3)
    assert isinstance(lazy.weight, nn.parameter.UninitializedParameter)
    assert isinstance(lazy.weight, nn.Parameter)
    with pytest.raises(ValueError, match="Attempted to use an uninitialized parameter"):
        lazy.weight + 1
    with pytest.raises(RuntimeError, match="Can't access the shape of an uninitialized parameter"):
        _ = lazy.weight.shape


def test_hooks() -> None:
    """Every kind of hook fires as often as in eager, with the same metadata."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        seen: list[Any] = []

        def record(tag: str) -> Callable[..., None]:
            return lambda *values: seen.append(
                (tag, describe([v for v in values if not isinstance(v, nn.Module)]))
            )

        module.register_forward_pre_hook(record("pre"))
        module.register_forward_hook(record("post"))
        module.register_full_backward_pre_hook(record("backward_pre"))
        module.register_full_backward_hook(record("backward"))
        module.register_state_dict_post_hook(lambda *_: seen.append("state"))
        parameter = next(module.parameters())
        parameter.register_hook(record("tensor"))
        parameter.register_post_accumulate_grad_hook(record("accumulated"))
        x.requires_grad_()
        out = module(x)
        out.register_hook(record("out"))
        out.retain_grad()
        out.sum().backward()
        module.state_dict()
        return [repr(s) for s in seen], out.grad

    for build in (linear, network):
        assert_outlives(build, use)


def test_saved_tensor_hooks() -> None:
    """Packing to the host and back, as ``save_on_cpu`` does."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        with torch.autograd.graph.save_on_cpu():
            loss = module(x).sum()
        loss.backward()
        return module

    assert_outlives(network, use)
