"""What a fake is exchanged with: every reference is real, with all that the parameter carried."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests._materialize.conftest import mlp, pair
from tests.oracle import assert_same
from torchfake import (
    deferred_init,
    deferred_mode,
    materialize_module,
    materialize_tensor,
)


def test_every_reference_is_real() -> None:
    _, module = pair(mlp)
    weight = module[0].weight
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    other, held = nn.Linear(3, 4), {"weight": weight}
    other.weight = weight
    reference = weakref.ref(weight)
    materialize_module(module)
    assert optimizer.param_groups[0]["params"][0] is weight
    assert held["weight"] is other.weight is module[0].weight is reference()
    assert type(weight) is nn.Parameter
    assert other(torch.ones(1, 3)).shape == (1, 4)


def test_views_and_their_base() -> None:
    """They share memory before, in between and after."""
    with deferred_mode():
        base = torch.zeros(2, 3)
        row, column = base[1], base.t()[2]
        row.fill_(5)
    materialize_tensor(row)
    assert row.tolist() == [5, 5, 5]
    column.add_(1)  # still a fake object, of memory that is there
    materialize_tensor(base)
    assert base.tolist() == [[0, 0, 1], [5, 5, 6]]
    assert row.data_ptr() == base.data_ptr() + 12
    assert materialize_tensor(column).tolist() == [1, 6]
    base.zero_()
    assert column.tolist() == [0, 0]


def test_what_a_parameter_carries() -> None:
    """Class, flags, attributes, hooks and gradients."""

    class Special(nn.Parameter):
        pass

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.special = Special(torch.ones(3))
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
            self.buffer = nn.Buffer(torch.ones(2), persistent=False)

    module = deferred_init(Module)
    module.special.tensor_parallel = True
    seen = []
    handle = module.special.register_hook(lambda grad: seen.append(grad.tolist()) or grad * 2)
    module.special.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    materialize_module(module)
    assert type(module.special) is Special
    assert module.special.tensor_parallel is True
    assert not module.frozen.requires_grad
    assert type(module.buffer) is torch.Tensor
    assert list(module.state_dict()) == ["special", "frozen"]
    module.special.sum().backward()
    assert module.special.grad.tolist() == [2, 2, 2]
    assert seen == [[1, 1, 1], "accumulated"]
    handle.remove()
    module.special.sum().backward()
    assert module.special.grad.tolist() == [3, 3, 3]


def test_module_hooks_and_training() -> None:
    eager, module = pair(mlp)
    calls = []
    module.register_forward_hook(lambda *_: calls.append("forward"))
    module.eval()
    materialize_module(module)
    x = torch.ones(2, 3)
    assert torch.equal(module(x), eager.eval()(x))
    assert calls == ["forward"]


def test_parametrizations() -> None:
    def build() -> nn.Module:
        layer = parametrizations.weight_norm(nn.Linear(3, 4))
        parametrize.register_parametrization(layer, "bias", nn.Softplus())
        return layer

    eager, module = pair(build)
    assert_same(eager, materialize_module(module))
    assert torch.equal(module.weight, eager.weight)
    assert torch.equal(module.bias, eager.bias)


def test_lazy_modules() -> None:
    """They stay lazy, and their parameters are made by the first real input."""
    module = deferred_init(lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()))
    materialize_module(module)
    assert module(torch.ones(2, 3)).shape == (2, 4)
    assert module[0].weight.shape == (4, 3)


def test_recurrent_layers() -> None:
    """Which hold weak references to their weights."""
    eager, module = pair(lambda: nn.LSTM(3, 4, num_layers=2))
    materialize_module(module)
    x = torch.ones(5, 1, 3)
    assert torch.equal(module(x)[0], eager(x)[0])
    module.double()


def test_inference_mode() -> None:
    eager, module = pair(mlp)
    with torch.inference_mode():
        materialize_module(module)
        inside = deferred_init(nn.Linear, 3, 4)
    assert_same(eager, module)
    assert materialize_module(inside).weight.is_inference()


@pytest.mark.parametrize("materialized", ["before", "after"])
def test_a_real_gradient(materialized: str) -> None:
    """It shares the memory of what was assigned, as in eager, and trains the parameter."""

    def train(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = torch.ones(2, 3)
        module.weight.grad = gradient
        assert module.weight.grad is not None
        assert module.weight.grad.device == gradient.device
        if materialized == "after":
            materialize_module(module)
        gradient.mul_(2)
        torch.optim.SGD([module.weight], lr=1.0).step()
        if materialized == "before":
            materialize_module(module)
        return module.weight, module.weight.grad

    torch.manual_seed(0)
    module = deferred_init(nn.Linear, 3, 2)
    torch.manual_seed(0)
    for one, other in zip(train(module), train(nn.Linear(3, 2)), strict=True):
        assert type(one) is type(other)
        assert torch.equal(one, other)
    other = deferred_init(nn.Linear, 3, 2)
    other.weight.grad = torch.ones(2, 3)
    other.weight.grad = None
    other.bias.grad = torch.ones(2)
    del other.bias.grad
    assert other.weight.grad is other.bias.grad is None
    with pytest.raises(RuntimeError, match="size"):
        other.weight.grad = torch.ones(5)
