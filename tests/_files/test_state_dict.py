"""Digests of modules: they depend on the values that would be computed, and on nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests._files.conftest import (
    Plain,
    seeded,
)
from tests.oracle import bits
from torchfake import (
    is_deferred,
    materialize_module,
    materialize_tensor,
)
from torchfake._files.state_dict import digest_of


def digest(build: Any) -> str:
    return digest_of(seeded(build, deferred=True).state_dict())


def test_a_digest_is_of_what_would_be_made() -> None:
    def digest(build: Any, seed: int = 0) -> str:
        module = seeded(build, deferred=True, seed=seed)
        return digest_of(module.state_dict())

    assert digest(Plain) == digest(Plain)
    assert digest(Plain) != digest(Plain, seed=1)
    assert digest(lambda: Plain().half()) != digest(Plain)
    scaled = [lambda s=s: nn.ParameterList([torch.rand(3) * s]) for s in (1.0, 2.0)]
    assert digest(scaled[0]) != digest(scaled[1])
    tables = [torch.arange(3.0), torch.arange(3.0) + 1]
    copied = [lambda t=t: nn.ParameterList([torch.ones(3) + t]) for t in tables]
    assert digest(copied[0]) != digest(copied[1])


def test_a_digest_does_not_depend_on_what_is_materialized() -> None:
    module = seeded(Plain, deferred=True)
    before = digest_of(module.state_dict())
    copy = seeded(Plain, deferred=True)
    materialize_module(copy)
    assert digest_of(module.state_dict()) == before
    module.norm(torch.ones(2, 8))  # reads
    again = seeded(Plain, deferred=True)
    materialize_module(again.second)
    names = {n: t for n, t in again.state_dict().items() if is_deferred(t)}
    other = {n: t for n, t in seeded(Plain, deferred=True).state_dict().items() if n in names}
    assert digest_of(names) == digest_of(other)


def test_a_digest_is_of_uncounted_draws_before_it_too() -> None:
    def build(bound: float) -> Any:
        def model() -> nn.Module:
            torch.nn.init.trunc_normal_(torch.empty(1_000_100), a=-bound, b=bound)
            return nn.Linear(3, 3)

        return model

    assert digest(build(2.0)) == digest(build(2.0))
    assert draws_alike(build) or digest(build(2.0)) != digest(build(0.5))

    def logs(n: int) -> Any:
        def model() -> nn.Module:
            torch.empty(n).log_normal_()
            return nn.Linear(3, 3)

        return model

    assert digest(logs(1_000_001)) != digest(logs(1_000_003))


def draws_alike(build: Any) -> bool:
    first, second = (seeded(build(bound), deferred=False) for bound in (2.0, 0.5))
    return bits(first.weight) == bits(second.weight)


def test_a_digest_is_the_same_after_earlier_draws_are_released() -> None:
    def build() -> nn.Module:
        sizes = (1_000_001, 20, 30)
        return nn.ParameterList([torch.empty(n).log_normal_() for n in sizes])

    module, before = seeded(build, deferred=True), digest(build)
    materialize_module(seeded(build, deferred=True))
    assert digest(build) == before
    materialize_tensor(module[2].detach().clone())  # does the draws before it
    assert digest_of(module.state_dict()) == before
