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
