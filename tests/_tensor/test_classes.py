"""The class of a fake constructs and copies as the class does that it stands for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import (
    deferred_mode,
    fake_like,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_tensor,
)


class Plain(nn.Parameter):
    """A subclass of Parameter without a constructor."""


class Scaled(nn.Parameter):
    """With a constructor that calls Parameter's."""

    def __new__(cls, data: Any = None, requires_grad: bool = True, scale: float = 1.0) -> Any:
        self: Any = super().__new__(cls, data, requires_grad)
        self.scale = scale
        return self


class Quantized(nn.Parameter):
    """With a constructor and a copy as bitsandbytes has them."""

    def __new__(cls, data: Any = None, requires_grad: bool = False, scale: float = 1.0) -> Any:
        data = torch.empty(0) if data is None else data
        self: Any = torch.Tensor._make_subclass(cls, data, requires_grad)
        self.scale = scale
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        copied: Any = type(self).__new__(type(self))
        copied.data = copy.deepcopy(self.data, memo)
        copied.scale = self.scale
        return copied


def _with_gradient() -> nn.Parameter:
    parameter: Any = nn.Parameter(torch.randn(4, 6).t())
    parameter.tag = "kept by no copy but a shallow one"
    (parameter * 2).sum().backward()
    return parameter


def _tensor_with_state() -> torch.Tensor:
    tensor: Any = torch.randn(4, 6)[:, ::2].requires_grad_()
    (tensor * 2).sum().backward()
    tensor.tag = [torch.ones(2)]
    return tensor


TENSORS: dict[str, Callable[[], Any]] = {
    "parameter": _with_gradient,
    "tensor": _tensor_with_state,
    "buffer": lambda: nn.Buffer(torch.randn(3)),
    "plain": lambda: Plain(torch.randn(3)),
    "scaled": lambda: Scaled(torch.randn(3), scale=2.0),
    "quantized": lambda: Quantized(torch.randn(3), scale=3.0),
    "lazy": lambda: nn.LazyLinear(4).weight,
}

CALLS: dict[str, Callable[[Any], Any]] = {
    "of data": lambda p: type(p)(p.data),
    "of class": lambda p: p.__class__(p.data.half(), requires_grad=False),
    "with attributes": lambda p: p.__class__(p.data, **p.__dict__),
    "all at once": lambda p: type(p)(p.data.to("cpu"), p.requires_grad, **p.__dict__),
    "unknown argument": lambda p: type(p)(p.data, other=1),
    "of integers": lambda p: type(p)(p.data.long(), requires_grad=True),
    "of nothing": lambda p: type(p)(),
    "parameter": lambda p: nn.Parameter(p, requires_grad=p.requires_grad),
    "deep copy": copy.deepcopy,
    "shallow copy": copy.copy,
}

_LAZY_CALLS = ("of nothing", "deep copy", "shallow copy")


def described(tensor: Any) -> Any:
    classes = [cls for cls in (nn.Parameter, nn.Buffer, Plain, Scaled, Quantized)
               if isinstance(tensor, cls)]  # fmt: skip
    attributes = sorted(tensor.__dict__)
    if nn.parameter.is_lazy(tensor):
        return classes, tensor.requires_grad
    grad = None if tensor.grad is None else described(tensor.grad)
    layout = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
    return classes, layout, tensor.requires_grad, tensor.is_leaf, attributes, grad


def outcome(call: Callable[[Any], Any], tensor: Any) -> tuple[Any, Any]:
    try:
        result = call(tensor)
    except Exception as error:
        return type(error), None
    return described(result), result


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", TENSORS)
def test_classes_construct_and_copy_as_in_eager(name: str, mode: Any, outside: bool) -> None:
    for call_name, call in CALLS.items():
        if name == "lazy" and call_name not in _LAZY_CALLS:
            continue
        torch.manual_seed(0)
        expected, real = outcome(call, TENSORS[name]())
        torch.manual_seed(0)
        place: AbstractContextManager[Any] = nullcontext() if outside else mode()
        with mode():
            fake = TENSORS[name]()
        with place:
            found, result = outcome(call, fake)
        assert found == expected, call_name
        assert result is None or call_name == "of nothing" or is_fake(result), call_name
        if result is not None and is_deferred(result) and name != "lazy" and real.numel():
            assert torch.equal(materialize_tensor(result), real), call_name
            assert type(result) is type(real)


def test_given_a_real_tensor_they_make_a_real_one() -> None:
    with fake_mode():
        weight, buffer = nn.Linear(2, 3).weight, torch.ones(3)
    made = type(weight)(torch.ones(2), requires_grad=False)
    assert type(made) is nn.Parameter
    assert not made.requires_grad
    assert type(type(buffer)([1.0, 2.0])) is torch.Tensor


def test_what_is_made_of_data_shares_its_memory() -> None:
    with fake_mode():
        weight = nn.Linear(2, 3).weight
    key = weight.untyped_storage()._cdata
    assert type(weight)(weight.data).untyped_storage()._cdata == key
    assert nn.Parameter(weight).untyped_storage()._cdata == key


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_detached_parameters_are_plain_tensors(mode: Any) -> None:
    with mode():
        weight = nn.Parameter(torch.ones(3))
    for result in (weight.detach(), weight.data, weight * 2, weight[1:], weight.clone()):
        assert not isinstance(result, nn.Parameter)


# The dict of attributes.


def _attributes(tensor: Any) -> list[Any]:
    """What a program does with ``__dict__``, on a tensor with attributes."""
    tensor.tag, tensor.list = "a", [1]
    updated: Any = torch.zeros(5, 2)
    updated.__dict__.update(tensor.__dict__)
    copied: Any = torch.zeros(4)
    for name, value in vars(tensor).items():
        setattr(copied, name, value)
    replaced: Any = torch.zeros(7)
    replaced.other = 1
    replaced.__dict__ = tensor.__dict__
    seen = [dict(vars(t)) for t in (torch.ones(2), tensor, updated, copied, replaced)]
    shapes = [t.shape for t in (tensor, updated, copied, replaced)]
    attributes = vars(tensor)
    tensor.late = 3
    seen += [{**attributes}, dict(attributes), copy.copy(attributes), attributes | {"x": 1}]
    seen += [
        pickle.loads(pickle.dumps(attributes)),
        attributes.pop("late"),
        hasattr(tensor, "late"),
    ]
    replaced.__dict__ = {}
    attributes.clear()
    seen += [hasattr(tensor, "tag"), tensor.shape, vars(replaced), isinstance(attributes, dict)]
    attributes |= {"k": 1}
    seen += [tensor.k, repr(attributes), copy.deepcopy(updated).list, vars(copy.copy(updated))]
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3, 3))
    one.m = 1  # type: ignore[attr-defined]
    torch.utils.swap_tensors(one, two)
    seen += [one.shape, two.shape, dict(vars(one)), dict(vars(two)), one.sum().item()]
    with pytest.raises(TypeError):
        tensor.__dict__ = 3
    return seen + shapes


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", ["parameter", "tensor", "buffer", "scaled"])
def test_attributes_of_a_fake_are_those_of_the_program(name: str, mode: Any) -> None:
    torch.manual_seed(0)
    wanted = _attributes(TENSORS[name]())
    with mode():
        assert _attributes(TENSORS[name]()) == wanted


def test_a_fake_and_a_real_tensor_are_swapped_with_their_attributes() -> None:
    one: Any = fake_like(torch.ones(2))
    other: Any = torch.zeros(3)
    one.of_fake, other.of_real = 1, 2
    torch.utils.swap_tensors(one, other)
    assert (is_fake(one), is_fake(other)) == (False, True)
    assert (vars(one), vars(other)) == ({"of_real": 2}, {"of_fake": 1})
    assert (one.shape, other.shape, other.device.type) == ((3,), (2,), "cpu")
    real: Any = torch.zeros(4)
    real.__dict__ = other.__dict__
    assert (vars(real), real.of_fake, real.tolist()) == ({"of_fake": 1}, 1, [0.0] * 4)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("cls", [nn.Parameter, Plain, Scaled, Quantized])
def test_parameters_of_integers_are_refused_as_in_eager(cls: Any, mode: Any) -> None:
    with pytest.raises(RuntimeError) as eager:
        cls(torch.arange(3), requires_grad=True)
    with mode(), pytest.raises(RuntimeError) as of_fake:
        cls(torch.arange(3), requires_grad=True)
    assert str(of_fake.value) == str(eager.value)
    with mode():
        assert not cls(torch.arange(3), requires_grad=False).requires_grad


@pytest.mark.parametrize("kind", [torch.Tensor.clone, nn.Parameter])
def test_a_deep_copy_counts_writes_as_in_eager(kind: Any) -> None:
    real = kind(torch.ones(3))
    copies = [copy.deepcopy(each) for each in (real, fake_like(real))]
    assert copies[0]._version == copies[1]._version


@pytest.mark.parametrize("cls", [torch.Tensor, nn.Parameter, Scaled])
def test_a_class_of_fakes_is_in_the_module_of_the_class_that_it_stands_for(cls: Any) -> None:
    """Einsum libraries choose by it whose functions compute: opt_einsum, autoray, cotengra."""
    with fake_mode():
        assert type(cls(torch.ones(2))).__module__ == cls.__module__
