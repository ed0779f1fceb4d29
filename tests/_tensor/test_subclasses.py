"""Instances of tensor subclasses in a mode: constructed, used, copied and made real as in eager."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental import proxy_tensor

from torchfake import (
    deferred_mode,
    fake_like,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_module,
    materialize_tensor,
)


class Tagged(torch.Tensor):
    """As torch makes a subclass: results are of the class."""


class Derived(Tagged): ...


class Constructed(torch.Tensor):
    """With a constructor."""

    def __new__(cls, data: Any, extra: int = 1) -> Any:
        made: Any = super().__new__(cls, data)
        made.extra = extra
        return made

    def __init__(self, data: Any, extra: int = 1) -> None:
        self.more = 2 * extra


class Named(torch.Tensor):
    """With an attribute that results inherit."""

    name: str | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result: Any = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Named):
            result.name = next((a.name for a in args if isinstance(a, Named)), None)
        return result


class Quiet(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


KEPT = (torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.requires_grad_)


class Unwrapping(torch.Tensor):
    """Results are plain tensors, but those of a few functions: as in torchvision."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, each) for each in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func in KEPT:
            return result if isinstance(result, cls) else result.as_subclass(cls)
        return result.as_subclass(torch.Tensor) if isinstance(result, cls) else result


CLASSES: list[type] = [Tagged, Derived, Constructed, Named, Quiet, Unwrapping]
KNOWN = [nn.Parameter, *CLASSES]
MODES = [fake_mode, deferred_mode]

MAKE: dict[str, Callable[[Any], Any]] = {
    "list": lambda cls: cls([1.0, 2.0, 3.0, 4.0]),
    "tensor": lambda cls: cls(torch.randn(4)),
    "as": lambda cls: torch.randn(4).as_subclass(cls),
    "function": lambda cls: torch.Tensor.as_subclass(torch.randn(4), cls),
    "leaf": lambda cls: torch.Tensor._make_subclass(cls, torch.randn(4), True),
    "in a graph": lambda cls: torch.randn(4, requires_grad=True).as_subclass(cls),
}


def _with_gradient(x: Any) -> list[Any]:
    leaf = x.detach().clone().requires_grad_()
    loss = (leaf * 2).sum()
    loss.backward()
    return [loss, leaf.grad]


def _cast(x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.linear(x.detach(), torch.ones(3, 4))


USES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "arithmetic": lambda x: [x + 1, 2 * x, torch.ones(4) * x, x.sum(), x > 0],
    "views": lambda x: [x.view(2, 2), x[1:], x.split(2), x[None].max(1), x.unbind()],
    "joined": lambda x: [torch.stack([x, x]), torch.cat([torch.zeros(2), x])],
    "in place": lambda x: [x.detach().clone().add_(1), x.detach().mul_(2)],
    "converted": lambda x: [x.to(torch.float64), x.half(), x.to("cpu"), x.double()],
    "new": lambda x: [torch.zeros_like(x), x.new_zeros(3), x.new_empty(2).fill_(1)],
    "detached": lambda x: [x.detach(), x.data, x.clone()],
    "gradients": _with_gradient,
    "other classes": lambda x: [x.as_subclass(torch.Tensor), x.as_subclass(Derived)],
    "parameters": lambda x: [nn.Parameter(x.detach()), nn.Buffer(x.detach())],
    "autocast": _cast,
    "copied": lambda x: copy.copy(x.detach()),
    "by its class": lambda x: type(x)(x.detach()),
    "no class": lambda x: x.as_subclass(int),
}


def described(value: Any, with_values: bool) -> Any:
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(described(item, with_values) for item in value)]
    if not isinstance(value, torch.Tensor):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        names = [c.__name__ for c in type(value).__mro__ if any(c is k for k in KNOWN)]
        layout = value.shape, value.stride(), value.storage_offset(), value.dtype, value.device
        graph = value.requires_grad, value.is_leaf, type(value.grad_fn).__name__
        own = {k: v for k, v in vars(value).items() if k != "_is_param"}
        found = [names, *layout, *graph, own]
        if with_values:
            plain = value.detach().as_subclass(torch.Tensor)
            found.append((materialize_tensor(plain) if is_fake(plain) else plain).tolist())
        return found


def outcome(make: Any, cls: Any, use: Any, mode: Any, with_values: bool) -> Any:
    torch.manual_seed(0)
    with mode():
        x = make(cls)
        try:
            result = use(x)
        except Exception as error:
            return type(error)
    return described(result, with_values)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("cls", CLASSES)
def test_subclasses_are_made_and_used_as_in_eager(cls: Any, use: str, mode: Any) -> None:
    with_values = mode is deferred_mode
    for make in MAKE.values():
        wanted = outcome(make, cls, USES[use], nullcontext, with_values)
        assert outcome(make, cls, USES[use], mode, with_values) == wanted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cls", [Tagged, Named, Unwrapping])
def test_fakes_of_subclasses_outside_their_mode(cls: Any, mode: Any) -> None:
    torch.manual_seed(0)
    eager = torch.randn(4).as_subclass(cls)
    torch.manual_seed(0)
    with mode():
        x = torch.randn(4).as_subclass(cls)
    for use in ("arithmetic", "views", "converted", "detached", "gradients", "other classes"):
        with_values = mode is deferred_mode
        wanted = described(USES[use](eager), with_values)
        assert described(USES[use](x), with_values) == wanted


def test_a_deferred_module_with_them_is_made_real() -> None:
    def build() -> nn.Module:
        module = nn.Linear(3, 2)
        module.register_buffer("mask", Constructed(torch.randn(3), extra=5))
        module.register_buffer("view", module.mask.as_subclass(Tagged))  # type: ignore[union-attr]
        module.tag = Named(torch.randn(2))  # type: ignore[assignment]
        return module

    torch.manual_seed(0)
    eager: Any = build()
    torch.manual_seed(0)
    with deferred_mode():
        module: Any = build()
    assert is_deferred(module)
    materialize_module(module)
    for name in ("mask", "view", "tag"):
        found, wanted = getattr(module, name), getattr(eager, name)
        assert (type(found), vars(found)) == (type(wanted), vars(wanted))
        assert torch.equal(found, wanted)
    assert module.mask.data_ptr() == module.view.data_ptr()


def test_pickles_and_deep_copies() -> None:
    with fake_mode():
        x: Any = Constructed(torch.ones(3), extra=4)
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        with torch.serialization.safe_globals([Constructed]):
            again = [pickle.loads(pickle.dumps(x)), copy.deepcopy(x), torch.load(file)]
    for each in again:
        assert is_fake(each)
        assert isinstance(each, Constructed)
        assert (each.extra, each.more, each.shape) == (4, 8, (3,))


def test_the_class_of_a_fake_is_found_in_tables_of_classes() -> None:
    """And the user's class is not found in torch's, where that of its fakes is."""
    real = torch.ones(2).as_subclass(Tagged)
    fake = fake_like(real)  # torch's tables are replaced while it lives
    kind = type(fake)
    assert kind is not Tagged
    assert kind == Tagged != Derived
    assert {Tagged: 1}[kind] == {kind: 1}[Tagged]
    assert kind in proxy_tensor.HANDLED_TYPES
    assert Tagged not in proxy_tensor.HANDLED_TYPES


def test_real_tensors_stay_real() -> None:
    real = torch.ones(2)
    with fake_mode():
        fake = Tagged(torch.ones(2))
        assert not is_fake(real.as_subclass(Tagged))
        assert not is_fake(Tagged(real))
        assert not is_fake(torch.Tensor.as_subclass(real, type(fake)))
        assert type(torch.Tensor.as_subclass(real, type(fake))) is Tagged
    assert type(Tagged([1.0])) is Tagged
    assert "__new__" not in vars(torch.Tensor)
    assert "as_subclass" not in vars(torch.Tensor)
