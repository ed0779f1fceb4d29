"""Caches of torch and of transformers, filled in a mode for objects that are real."""

from __future__ import annotations

import sys
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import distributions
from torch.nn.utils import parametrizations, parametrize

from torchfake import deferred_mode, fake_mode, is_fake

MODES = (fake_mode, deferred_mode)


@pytest.mark.parametrize("mode", MODES)
def test_parametrized_tensors_are_real_after_the_mode(mode: Any) -> None:
    module = parametrizations.weight_norm(torch.nn.Linear(3, 4))
    with parametrize.cached():
        with mode():
            inside = module.weight
            assert is_fake(inside)
            assert module.weight is inside
        outside = module.weight
        assert not is_fake(outside)
        with mode():
            pass
        assert module.weight is outside


DISTRIBUTIONS = {
    "Categorical": (lambda: distributions.Categorical(logits=torch.zeros(3)), "probs"),
    "Bernoulli": (lambda: distributions.Bernoulli(torch.full((3,), 0.5)), "logits"),
    "MultivariateNormal": (
        lambda: distributions.MultivariateNormal(torch.zeros(3), torch.eye(3)),
        "precision_matrix",
    ),
    "VonMises": (lambda: distributions.VonMises(torch.zeros(3), torch.ones(3)), "_proposal_r"),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("mode", MODES)
def test_distributions_are_real_after_the_mode(mode: Any, name: str) -> None:
    make, attribute = DISTRIBUTIONS[name]
    real = make()
    with mode():
        real.sample()
        assert is_fake(getattr(real, attribute))
        fake = make()
        assert getattr(fake, attribute) is getattr(fake, attribute)
    assert not is_fake(getattr(real, attribute))
    torch.testing.assert_close(getattr(real, attribute), getattr(make(), attribute))


def test_tables_of_models_are_real_after_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = lru_cache(maxsize=4)(torch.arange)
    module: Any = ModuleType("transformers.models.tables.modeling_tables")
    members: dict[str, Any] = {
        "__module__": module.__name__,
        "method": lambda _, size: cached(size),
        "static": staticmethod(lru_cache(torch.ones)),
    }
    model = type("Model", (), members)
    module.Model = model
    module.function = lru_cache(torch.zeros)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    functions = partial(members["method"], None), members["static"], module.function
    kept = [function(3) for function in functions]
    with fake_mode():
        pass
    assert all(function(3) is table for function, table in zip(functions, kept, strict=True))
    for mode in MODES:
        with mode():
            inside = [function(4) for function in functions]
            assert all(map(is_fake, inside))
            assert all(f(4) is table for f, table in zip(functions, inside, strict=True))
        assert not any(is_fake(function(4)) for function in functions)
        for clear in (cached, members["static"], module.function):
            getattr(clear, "__func__", clear).cache_clear()
