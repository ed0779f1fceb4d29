"""``torch.func`` on fakes: vmap, grad, jacobians, functional calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.behaviour.conftest import linear
from tests.conftest import (
    assert_inside,
    assert_outlives,
)
from torchfake import deferred_mode, fake_mode

FUNC_USES: dict[str, Callable[..., Any]] = {
    "functional_call": lambda m, x: torch.func.functional_call(
        m, {"weight": x.new_ones(3, 4), "bias": x.new_ones(3)}, (x,)
    ),
    "functional_call_real": lambda m, x: torch.func.functional_call(
        m, {"bias": torch.ones(3)}, (x,)
    ),
    "vmap": lambda m, x: torch.func.vmap(lambda row: m(row).relu())(x),
    "vmap_nested": lambda m, x: torch.func.vmap(torch.func.vmap(torch.sin))(x),
    "vmap_out_dims": lambda m, x: torch.func.vmap(lambda r: r * 2, in_dims=1, out_dims=1)(x),
    "grad": lambda m, x: torch.func.grad(lambda t: m(t).sum())(x),
    "grad_and_value": lambda m, x: torch.func.grad_and_value(lambda t: m(t).sum())(x),
    "per_sample": lambda m, x: torch.func.vmap(
        torch.func.grad(lambda p, row: torch.func.functional_call(m, p, (row,)).sum()),
        in_dims=(None, 0),
    )({name: p.detach() for name, p in m.named_parameters()}, x),
    "jacrev": lambda m, x: torch.func.jacrev(m)(x),
    "jacfwd": lambda m, x: torch.func.jacfwd(m)(x),
    "hessian": lambda m, x: torch.func.hessian(lambda t: m(t).pow(2).sum())(x),
    "vjp": lambda m, x: torch.func.vjp(m, x)[1](x.new_ones(2, 3)),
    "jvp": lambda m, x: torch.func.jvp(m, (x,), (x,)),
    "functionalize": lambda m, x: torch.func.functionalize(lambda t: t.clone().add_(1))(x),
    "stack_module_state": lambda m, x: torch.func.stack_module_state([m, copy.deepcopy(m)]),
    "ensemble": lambda m, x: ensemble([m, copy.deepcopy(m)], x),
}


def ensemble(models: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    parameters, buffers = torch.func.stack_module_state(models)
    return torch.func.vmap(lambda p, b: torch.func.functional_call(models[0], (p, b), (x,)))(
        parameters, buffers
    )


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("name", FUNC_USES)
def test_torch_func(name: str) -> None:
    """Function transforms, after the mode and inside it."""
    assert_outlives(linear, FUNC_USES[name])
    assert_inside(lambda: FUNC_USES[name](*linear()))


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x[0].item(),
    "condition": lambda x: bool((x > 0.2).all()),
    "storage": lambda x: x.untyped_storage().tolist(),
    "generator": lambda x: torch.get_rng_state().tolist(),
    "set_generator": lambda x: torch.set_rng_state(torch.get_rng_state()),
    "fork": lambda _: torch.random.fork_rng().__enter__(),
}
"""What reads a value or the generator's state. Earlier draws are executed then."""

TRANSFORMS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = {
    "functionalize": lambda f: torch.func.functionalize(f)(torch.ones(3)),
    "vmap": lambda f: torch.func.vmap(f)(torch.ones(2, 3)),
    "grad": lambda f: torch.func.grad(f)(torch.ones(3)),
    "jvp": lambda f: torch.func.jvp(f, (torch.ones(3),), (torch.ones(3),)),
    "nested": lambda f: torch.func.vmap(torch.func.grad(f))(torch.ones(2, 3)),
}


def read_in_transform(transform: str, read: str) -> Any:
    torch.manual_seed(0)
    x, other, found = torch.rand(3), torch.randn(2), []

    def function(y: torch.Tensor) -> torch.Tensor:
        found.append(READS[read](x))
        return y.sum()

    TRANSFORMS[transform](function)
    return found, x.tolist(), other.tolist(), torch.rand(2).tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("read", READS)
def test_values_are_computed_outside_of_transforms(transform: str, read: str) -> None:
    expected = read_in_transform(transform, read)
    with fake_mode():
        assert read_in_transform(transform, read) == expected
    with deferred_mode():
        assert read_in_transform(transform, read) == expected


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_tensors_are_copied_in_transforms(transform: str) -> None:
    for mode in (fake_mode, deferred_mode):
        with mode():
            x, found = torch.arange(3.0), []
            TRANSFORMS[transform](lambda y: (found.append(copy.deepcopy(x)), y.sum())[1])  # noqa: B023
            assert found[0].tolist() == [0, 1, 2]
