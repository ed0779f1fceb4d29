"""Gradients, checkpointing and grad modes give what they give in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.behaviour.conftest import linear, matrix, network, tied
from tests.conftest import (
    assert_inside,
    assert_outlives,
    describe,
)
from torchfake import deferred_mode, fake_mode


def test_backward() -> None:
    """Gradients arrive, once for each backward, and accumulate."""

    def train(module: nn.Module, x: torch.Tensor) -> Any:
        x.requires_grad_()
        module(x).sum().backward()
        (module(x) ** 2).mean().backward()
        return module, x.grad

    for build in (linear, network, tied):
        assert_outlives(build, train)


def test_backward_of_a_graph_made_inside() -> None:
    """The graph recorded in the mode is run after it."""

    def build() -> tuple[nn.Module, torch.Tensor]:
        module, x = network()
        return module, module(x).sum()

    def run_back(module: nn.Module, loss: torch.Tensor) -> Any:
        loss.backward()
        return module

    assert_outlives(build, run_back)


def test_autograd_api() -> None:
    """``torch.autograd.grad``, double backward, jacobian, custom Functions."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * ctx.saved_tensors[0]

    def use(a: torch.Tensor) -> Any:
        a.requires_grad_()
        (first,) = torch.autograd.grad((a**3).sum(), a, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), a)
        jacobian = torch.autograd.functional.jacobian(lambda x: x @ x.mT, a)
        Twice.apply(a).sum().backward()
        return first, second, jacobian, a.grad

    assert_outlives(matrix, use)


# Checkpointing and grad modes.


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("preserve_rng_state", [True, False])
def test_checkpoint(use_reentrant: bool, preserve_rng_state: bool) -> None:
    """Activation checkpointing runs the forward again in backward, outside the mode too."""
    options = {"use_reentrant": use_reentrant, "preserve_rng_state": preserve_rng_state}

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        x.requires_grad_()
        inner = checkpoint(module[:3], x, **options)
        checkpoint(module[3:], inner, **options).sum().backward()
        return module, x.grad

    assert_outlives(network, use)
    assert_inside(lambda: use(*network()))


def test_checkpoint_sequential() -> None:
    """``checkpoint_sequential`` in segments."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        x.requires_grad_()
        run = torch.utils.checkpoint.checkpoint_sequential
        run(module, 2, x, use_reentrant=False).sum().backward()
        return module, x.grad

    assert_outlives(network, use)


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_grad_modes(context: Any) -> None:
    """Grad modes entered inside, outside and around the fake mode."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        with context():
            out = module(x)
            made = torch.ones_like(x)
            return out, made, out.is_inference(), made.is_inference(), out.detach(), x[0]

    assert_outlives(network, use)
    assert_inside(lambda: use(*network()))
    with context():
        expected = describe(use(*network()))
        with fake_mode():
            made = network()
            inside = describe(use(*made))
        assert inside == expected
        assert describe(use(*made)) == expected


def test_inference_tensors_refuse_what_eager_refuses() -> None:
    """The same error for a write outside inference mode."""
    with torch.inference_mode():
        real = torch.ones(3)
        with fake_mode():
            fake = torch.ones(3)
    for tensor in (real, fake):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            tensor.add_(1)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("outside", [False, True])
def test_views_of_real_tensors_are_of_eagers_kind(mode: Any, inside: bool, outside: bool) -> None:
    """Tensors made in inference mode, or not, are viewed in a mode, in inference mode or not."""
    views = (torch.detach, torch.t, lambda t: t.view(-1), lambda t: t[0], lambda t: t.data)

    def kinds(tensor: torch.Tensor) -> list[Any]:
        with torch.inference_mode(inside):
            found = [view(tensor) for view in views]
            return [(v.is_inference(), v.shape, v.requires_grad, type(v)) for v in found]

    with torch.inference_mode(outside):
        real = torch.ones(2, 2)
    expected = kinds(real)
    with mode():
        assert kinds(real) == expected


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_a_row_that_is_pooled_without_gradients_is_no_view(mode: Any) -> None:
    def pooled() -> list[bool]:
        images = torch.rand(2, 4, 8)
        net = nn.Sequential(nn.Conv1d(4, 4, 1), nn.MaxPool1d(2))
        with torch.no_grad():
            results = [functional.max_pool1d(images, 2), net(images)]
        results += [net(images), *functional.max_pool1d(images, 2, return_indices=True)]
        return [result._is_view() for result in results]

    with mode():
        found = pooled()
    assert found == pooled()


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_a_pooled_row_can_be_mapped_and_written(mode: Any) -> None:
    with mode():
        images = torch.ones(3, 2, 4, 8)
        assert torch.vmap(lambda x: functional.max_pool1d(x, 2))(images).shape == (3, 2, 4, 4)
        row = functional.max_pool1d(images[0], 2).add_(1)
        assert row.requires_grad_().is_leaf
        assert row.tolist() == torch.full((2, 4, 4), 2.0).tolist()


@pytest.mark.parametrize("scale", [1.0, -1.0, 0.0, float("inf"), float("nan")])
@pytest.mark.parametrize("function", [torch.max, torch.min, torch.median, torch.nanmedian])
def test_the_gradient_of_an_extreme_is_made_in_zeros(function: Any, scale: float) -> None:
    """C++ multiplies by a mask for subclasses: elements beside the extreme would be -0, or NaN."""

    def bits() -> list[Any]:
        found = []
        for values in ([3.0, 1.0, 2.0, 5.0, 5.0], [1.0, float("nan"), 2.0], [[7.0]]):
            x = torch.tensor(values).requires_grad_()
            twice = x * 2
            loss = (function(twice) * scale).square()
            (grad,) = torch.autograd.grad(loss, twice, create_graph=True)
            names = (type(grad.grad_fn).__name__, grad.stride())
            (function(x) * scale).backward()
            found += [names, grad.detach().view(torch.int32).tolist()]
            found.append(x.grad.view(torch.int32).tolist())  # type: ignore[union-attr]
        return found

    expected = bits()
    with deferred_mode():
        assert bits() == expected
    with fake_mode():
        assert bits() == expected


@pytest.mark.parametrize("scale", [1.0, -2.0, float("inf")])
def test_the_gradient_of_an_extreme_under_a_checkpoint(scale: float) -> None:
    def bits() -> Any:
        x = torch.tensor([3.0, 1.0, 2.0, 5.0]).requires_grad_()
        checkpoint(lambda x: (x * 2).max() * scale, x, use_reentrant=False).backward()
        return x.grad.view(torch.int32).tolist()  # type: ignore[union-attr]

    expected = bits()
    with deferred_mode():
        assert bits() == expected
