"""Attributes that were computed from parameters, and graphs that hold what becomes real."""

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchfake import (
    deferred_init,
    fake_mode,
    is_fake,
    materialize_module,
    materialize_tensor,
)
from torchfake.errors import MaterializeError


class Reassigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2))
        self.register_buffer("scaled", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.scaled = self.weight * 2
        return x + self.scaled


def test_a_buffer_that_forward_computes_of_parameters() -> None:
    torch.manual_seed(0)
    eager = Reassigned()
    eager(torch.ones(2))
    torch.manual_seed(0)
    module = deferred_init(Reassigned)
    module(torch.ones(2))
    with pytest.warns(UserWarning, match="scaled was computed from parameters"):
        materialize_module(module)
    assert torch.equal(module.scaled, eager.scaled)
    module(torch.ones(2)).sum().backward()
    assert torch.equal(module.weight.grad, torch.full((2,), 2.0))


def _pruned() -> nn.Module:
    return torch.nn.utils.prune.l1_unstructured(nn.Linear(3, 2), "weight", 0.5)


def _normed() -> nn.Module:
    return torch.nn.utils.weight_norm(nn.Linear(3, 2))


def _spectral() -> nn.Module:
    return torch.nn.utils.spectral_norm(nn.Linear(3, 2))


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("build", [_normed, _pruned, _spectral])
def test_weights_computed_by_hooks_have_eager_s_history(build: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    module = materialize_module(deferred_init(build))
    assert module.weight.is_leaf == eager.weight.is_leaf
    assert str(module.weight.grad_fn).split()[0] == str(eager.weight.grad_fn).split()[0]
    assert torch.equal(module.weight, eager.weight)
    for each in (module, eager):
        if each.weight.requires_grad:
            each.weight.sum().backward()
    for name, parameter in eager.named_parameters():
        found = module.get_parameter(name).grad
        assert (found is None) == (parameter.grad is None)
        assert found is None or torch.equal(found, parameter.grad)


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_weights_are_computed_again_inside_a_mode() -> None:
    with fake_mode(), warnings.catch_warnings():
        module = materialize_module(deferred_init(_normed))
    assert not is_fake(module.weight)
    assert not module.weight.is_leaf


class _Cycle:
    def __init__(self, output: Tensor) -> None:
        self.output, self.itself = output, self


@pytest.fixture
def _without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_collector")
def test_a_graph_that_only_a_cycle_holds_is_freed() -> None:
    module = deferred_init(nn.Linear, 2, 2)
    _Cycle(module(torch.ones(1, 2)))
    materialize_module(module)
    tensor = deferred_init(torch.ones, 2).requires_grad_()
    _Cycle(tensor * 2)
    materialize_tensor(tensor)


@pytest.mark.usefixtures("_without_collector")
def test_a_graph_that_the_program_holds_is_still_refused() -> None:
    module = deferred_init(nn.Linear, 2, 2)
    kept = _Cycle(module(torch.ones(1, 2)))
    with pytest.raises(MaterializeError, match="the graph of a forward pass holds it"):
        materialize_module(module)
    assert kept.output.requires_grad
