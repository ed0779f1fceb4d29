"""The class of a fake constructs and copies as the class does that it stands for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_mode, is_deferred, is_fake, materialize_tensor


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
    attributes = sorted(k for k in tensor.__dict__ if not k.startswith("_fake"))
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
