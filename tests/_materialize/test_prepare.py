"""Plain attributes and casts: what is released or recorded before a replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from tests._materialize.conftest import mlp, pair
from tests.oracle import assert_same, bits
from torchfake import (
    deferred_init,
    errors,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_module,
)


def test_plain_attributes() -> None:
    """Tensors in attributes, lists and dicts are real too, and so is the forward pass."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)
            self.scale = torch.rand(4)
            self.parts = {"shift": [torch.rand(4), 3], "none": None}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale + self.parts["shift"][0]

    eager, module = pair(Tables)
    materialize_module(module, buffers_only=True)
    assert is_deferred(module.scale)
    materialize_module(module)
    output = module(torch.ones(2, 3))
    assert not is_fake(output)
    assert torch.equal(output, eager(torch.ones(2, 3)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.utils.weight_norm(nn.Linear(3, 4)),
        lambda: prune.l1_unstructured(nn.Linear(3, 4), "weight", 0.5),
        lambda: nn.utils.spectral_norm(nn.Linear(3, 4)),
    ],
    ids=["weight_norm", "prune", "spectral_norm"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_hooks_that_compute_a_weight(build: Callable[[], nn.Module]) -> None:
    """Theirs is an attribute with a history, which each forward pass computes anew."""
    eager, module = pair(build)
    assert_same(eager, materialize_module(module))
    x = torch.ones(2, 3)
    for one in (eager, module):
        one(x).sum().backward()
    assert torch.equal(module(x), eager(x))
    for one, other in zip(eager.parameters(), module.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "bfloat16": lambda module: module.bfloat16(),
    "half": lambda module: module.half(),
    "double": lambda module: module.to(torch.float64),
    "written": lambda module: module.apply(_fill),
}


def _fill(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.ones_(parameter)


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.utils.weight_norm(nn.Linear(3, 4)),
        lambda: prune.l1_unstructured(nn.Linear(3, 4), "weight", 0.5),
        lambda: prune.random_unstructured(nn.Linear(3, 4), "bias", 1),
        lambda: nn.utils.spectral_norm(nn.Linear(3, 4)),
    ],
    ids=["weight_norm", "prune", "prune bias", "spectral_norm"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_stays_as_its_hook_has_computed_it(
    build: Callable[[], nn.Module], cast: str
) -> None:
    """A cast, or a write, reaches the parameters; the attribute follows in the next forward."""
    eager, module = pair(lambda: CASTS[cast](build()))
    with fake_mode():
        fake = CASTS[cast](build())
    assert _plain_tensors(fake) == _plain_tensors(module) == _plain_tensors(eager)
    assert_same(eager, materialize_module(module))
    assert _plain_tensors(module) == _plain_tensors(eager)
    for name in _plain_tensors(eager):
        assert bits(getattr(module, name)) == bits(getattr(eager, name))
    x = torch.ones(2, 3, dtype=next(eager.parameters()).dtype)
    assert torch.equal(module(x), eager(x))
    assert _plain_tensors(module) == _plain_tensors(eager)


def _plain_tensors(module: nn.Module) -> dict[str, tuple[object, ...]]:
    tensors = {name: t for name, t in vars(module).items() if isinstance(t, torch.Tensor)}
    return {
        name: (t.dtype, t.is_leaf, t.requires_grad, type(t.grad_fn).__name__)
        for name, t in tensors.items()
    }


def test_an_attribute_computed_of_parameters() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3))
            self.double = self.weight * 2

    eager, module = pair(Doubled)
    with pytest.warns(UserWarning, match=r"^double was computed from parameters"):
        materialize_module(module)
    assert torch.equal(module.double, eager.double)
    assert_same(eager, module)


def test_another_dtype() -> None:
    eager, module = pair(mlp)
    assert_same(eager.to(torch.bfloat16), materialize_module(module, dtype=torch.bfloat16))
    assert module[1].num_batches_tracked.dtype == torch.int64


def test_plain_attributes_are_not_cast_as_by_the_method_to() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4))
            self.table = torch.rand(4)[::2]
            self.half = self.weight.detach()[:2]

    eager, module = pair(Tables)
    eager.to(torch.float64)
    materialize_module(module, dtype=torch.float64)
    assert_same(eager, module)
    assert module.table.dtype == eager.table.dtype == torch.float32
    assert torch.equal(module.table, eager.table)
    assert torch.equal(module.half, eager.half)
    assert module.table._base.shape == eager.table._base.shape


def test_a_cast_that_is_refused_has_not_been_made() -> None:
    _, module = pair(mlp)
    output = module(torch.ones(2, 3))
    with pytest.raises(errors.MaterializeError):
        materialize_module(module, dtype=torch.float64)
    assert module[0].weight.dtype == torch.float32
    del output


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scripted_modules_are_refused() -> None:
    scripted = torch.jit.script(deferred_init(nn.Linear, 3, 4))
    with pytest.raises(errors.MaterializeError, match=r"the module is scripted"):
        materialize_module(scripted)


def test_a_refused_call_leaves_histories_alone() -> None:
    """Whatever refuses it: another graph, the checkpoint."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.weight = nn.Parameter(torch.rand(3))
            self.scaled = self.weight * 2

    module = deferred_init(Scaled)
    output = module.layer(torch.ones(1, 2))
    with pytest.raises(errors.MaterializeError, match=r"^layer\.weight cannot"):
        materialize_module(module)
    assert module.scaled.grad_fn is not None
    del output
    with pytest.raises(errors.CheckpointError, match="Nothing was changed"):
        materialize_module(module, checkpoint={"nothing": torch.ones(1)})
    assert module.scaled.grad_fn is not None
    with pytest.warns(UserWarning, match="^scaled was computed from parameters") as caught:
        materialize_module(module)
    assert caught[0].filename == __file__
    assert torch.equal(module.scaled, module.weight * 2)
