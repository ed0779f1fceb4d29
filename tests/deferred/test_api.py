"""What the functions of torchfake.deferred promise."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import assert_same
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from torchfake import (
    FakeTensor,
    deferred_init,
    deferred_mode,
    dematerialize_module,
    errors,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_module,
    materialize_tensor,
)


def pair(build: Callable[[], Any]) -> tuple[Any, Any]:
    """Eager's, and the deferred one under the same seed."""
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    return eager, deferred_init(build)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2)))


def test_any_callable_and_any_return() -> None:
    def build(n: int, *, bias: bool) -> dict[str, Any]:
        return {"layer": nn.Linear(n, n, bias=bias), "rest": (torch.ones(n), [torch.arange(n)])}

    made = deferred_init(build, 3, bias=False)
    assert is_deferred(made["layer"])
    assert is_deferred(made["rest"][0])
    assert materialize_tensor(made["rest"][1][0]).tolist() == [0, 1, 2]
    assert deferred_init(lambda: 5) == 5


def test_is_deferred() -> None:
    layer = deferred_init(nn.Linear, 2, 2)
    with fake_mode():
        plain = nn.Linear(2, 2)
    assert is_deferred(layer)
    assert is_deferred(layer.bias)
    assert is_fake(layer)
    assert not is_deferred(plain)
    assert not is_deferred(nn.Linear(2, 2))
    assert not is_deferred(torch.ones(2))
    materialize_tensor(layer.bias)
    assert is_deferred(layer)
    with pytest.raises(ValueError, match="is_deferred takes a tensor or a module, not int"):
        is_deferred(3)  # type: ignore[arg-type]


def test_materialize_tensor_gives_the_same_object() -> None:
    with deferred_mode():
        tensor = torch.full((3,), 2.0)
    same = materialize_tensor(tensor)
    assert same is tensor
    assert type(same) is torch.Tensor
    address = tensor.data_ptr()
    assert materialize_tensor(tensor) is tensor
    assert tensor.data_ptr() == address
    real = torch.ones(2)
    assert materialize_tensor(real) is real


def test_part_of_a_module() -> None:
    eager, module = pair(mlp)
    materialize_module(module, check_fn=lambda m: isinstance(m, nn.BatchNorm1d))
    assert not is_deferred(module[1])
    assert is_deferred(module[0])
    materialize_module(module[2])
    assert is_deferred(module[0])
    assert_same(eager, materialize_module(module))


def test_buffers_only() -> None:
    _, module = pair(mlp)
    materialize_module(module, buffers_only=True)
    assert [name for name, t in module.named_parameters() if not is_deferred(t)] == []
    assert not any(is_deferred(buffer) for buffer in module.buffers())


def test_another_dtype() -> None:
    eager, module = pair(mlp)
    assert_same(eager.to(torch.bfloat16), materialize_module(module, dtype=torch.bfloat16))
    assert module[1].num_batches_tracked.dtype == torch.int64


def test_another_device() -> None:
    """What was built for a CUDA device that is not there is real on the CPU."""
    with deferred_mode(fake_cuda=True):
        module = nn.Linear(3, 4, device="cuda")
        module.register_buffer("ones", torch.ones(3, device="cuda:0"))
    if not torch.cuda.is_available():
        with pytest.raises(errors.MaterializeError, match="weight was recorded on cuda:0"):
            materialize_module(module)
    materialize_module(module, device="cpu")
    assert module.ones.tolist() == [1, 1, 1]
    assert module.weight.device.type == "cpu"
    assert module.weight.abs().max() <= 3**-0.5


# In place.


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


# And back.


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


# Modes.


def test_the_mode_nests_and_decorates() -> None:
    @deferred_mode()
    def build() -> torch.Tensor:
        with fake_mode():
            inner = torch.ones(2)
        assert isinstance(inner, FakeTensor)
        assert not is_deferred(inner)
        return torch.ones(3)

    assert materialize_tensor(build()).tolist() == [1, 1, 1]
    with fake_mode(), deferred_mode():
        made = torch.ones(2)
    assert materialize_tensor(made).tolist() == [1, 1]


def test_materializing_inside_a_mode() -> None:
    with deferred_mode():
        layer = nn.Linear(3, 4)
        materialize_module(layer)
        assert not is_fake(layer)
        again = nn.Linear(3, 4)
    assert is_deferred(again)


def test_default_device_and_dtype() -> None:
    def build() -> nn.Module:
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("cpu"):
                return nn.Sequential(nn.Linear(3, 3), nn.Linear(2, 2, dtype=torch.bfloat16))
        finally:
            torch.set_default_dtype(torch.float32)

    eager, module = pair(build)
    assert_same(eager, materialize_module(module))


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    _, module = pair(mlp)
    materialize_module(module[0], progress=True)
    assert "Materializing: 100%" in capsys.readouterr().err
    materialize_module(module[1])
    materialize_module(module, progress=False)
    assert capsys.readouterr().err == ""


# What a review found.


def test_uninitialised_memory_is_not_given_back() -> None:
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


def test_inference_mode() -> None:
    eager, module = pair(mlp)
    with torch.inference_mode():
        materialize_module(module)
        inside = deferred_init(nn.Linear, 3, 4)
    assert_same(eager, module)
    assert materialize_module(inside).weight.is_inference()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scripted_modules_are_refused() -> None:
    scripted = torch.jit.script(deferred_init(nn.Linear, 3, 4))
    with pytest.raises(errors.MaterializeError, match=r"the module is scripted"):
        materialize_module(scripted)


def test_a_cast_that_is_refused_has_not_been_made() -> None:
    _, module = pair(mlp)
    output = module(torch.ones(2, 3))
    with pytest.raises(errors.MaterializeError):
        materialize_module(module, dtype=torch.float64)
    assert module[0].weight.dtype == torch.float32
    del output
