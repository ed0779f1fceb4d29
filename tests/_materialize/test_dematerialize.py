"""Memory given back: a module is deferred again only if its record gives the same bits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests._materialize.conftest import mlp, pair
from tests.oracle import assert_same
from torchfake import (
    deferred_init,
    dematerialize_module,
    errors,
    is_deferred,
    is_fake,
    materialize_module,
)


def test_dematerialize() -> None:
    eager, module = pair(mlp)
    weight = module[0].weight
    materialize_module(module)
    address = weakref.ref(weight.untyped_storage())
    assert dematerialize_module(module) is module
    gc.collect()
    assert address() is None
    assert is_deferred(weight)
    assert isinstance(weight, nn.Parameter)
    assert_same(eager, materialize_module(module))
    assert module[0].weight is weight


def test_dematerialize_with_ties_and_views() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.register_buffer("row", self.a.weight.data[1])

    eager, module = pair(Tied)
    materialize_module(module)
    dematerialize_module(module)
    assert module.a.weight is module.b.weight
    assert_same(eager, materialize_module(module))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[0].weight.data.add_(1),
        lambda m: m[0].weight.data.neg_(),
        lambda m: setattr(m[0].weight, "data", torch.ones(4, 3)),
        lambda m: m.half(),
    ],
)
def test_changed_values_are_not_given_back(change: Callable[[nn.Module], Any]) -> None:
    _, module = pair(mlp)
    materialize_module(module)
    change(module)
    with pytest.raises(errors.ChangedValueError, match=r"^0\.weight "):
        dematerialize_module(module)
    assert not is_fake(module)
    dematerialize_module(module, check_fn=lambda m: isinstance(m, nn.BatchNorm1d) and m.eps > 1)


def test_what_was_never_deferred_is_not_given_back() -> None:
    with pytest.raises(errors.ChangedValueError, match="has no record"):
        dematerialize_module(nn.Linear(2, 2))


def test_uninitialized_memory_is_not_given_back() -> None:
    """What was loaded into it would be lost."""

    def build() -> nn.Module:
        module = nn.Module()
        module.weight = nn.Parameter(torch.empty(3))
        return module

    module = materialize_module(deferred_init(build))
    module.load_state_dict({"weight": torch.tensor([7.0, 8, 9])})
    with pytest.raises(errors.ChangedValueError, match=r"^weight was changed"):
        dematerialize_module(module)
    assert module.weight.tolist() == [7, 8, 9]


def test_gradients_are_not_given_back() -> None:
    layer = materialize_module(deferred_init(nn.Linear, 3, 4))
    output = layer(torch.ones(1, 3))
    with pytest.raises(errors.MaterializeError, match=r"^weight cannot become fake in place"):
        dematerialize_module(layer)
    output.sum().backward()
    del output
    with pytest.raises(errors.ChangedValueError, match=r"^weight has a gradient"):
        dematerialize_module(layer)
    layer.zero_grad()
    assert is_deferred(dematerialize_module(layer))


def test_a_tensor_keeps_its_version() -> None:
    eager, module = pair(mlp)
    materialize_module(dematerialize_module(materialize_module(module)))
    versions = [tensor._version for tensor in module.parameters()]
    assert versions == [tensor._version for tensor in eager.parameters()]
