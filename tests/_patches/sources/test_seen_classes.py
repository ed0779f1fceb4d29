"""What a program changes in classes of torch is seen where a constructor or a reset uses them."""

from __future__ import annotations

import enum
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from torchfake import deferred_init, deferred_mode, fake_mode, materialize_module
from torchfake._cache import cache
from torchfake._core import modes
from torchfake._patches.sources import effects

MODULE = nn.modules.module

pytestmark = pytest.mark.usefixtures("unchecked", "nothing_learned")


class Ordered(OrderedDict[Any, Any]):
    pass


class OwnParameter(nn.Parameter):
    pass


class Switch:
    """An attribute of a class that is asked for."""

    def __init__(self) -> None:
        self.num_times = 0

    def __get__(self, _module: Any, _owner: Any) -> bool:
        self.num_times += 1
        return False


class Base(nn.Module):
    num_modules = 0

    def __init__(self) -> None:
        super().__init__()
        Base.num_modules += 1
        self.__dict__["tag"] = Base.num_modules


class Counting(dict[Any, Any]):
    """The attributes of a module, told what is set."""

    names: list[str]

    def __setitem__(self, name: str, value: Any) -> None:
        self.names.append(name)
        super().__setitem__(name, value)


def other_containers() -> Any:
    with mock.patch.object(MODULE, "OrderedDict", Ordered):
        return type(nn.Linear(30, 100)._forward_hooks).__name__


def other_parameters() -> Any:
    with mock.patch.object(MODULE, "Parameter", OwnParameter):
        layer = nn.Linear(30, 100)
    return list(layer._parameters), "weight" in vars(layer)


def other_switch() -> Any:
    switch = Switch()
    with mock.patch.object(nn.Module, "call_super_init", switch):
        nn.Linear(30, 100)
    return switch.num_times > 0


def other_bases() -> Any:
    bases, Base.num_modules = nn.Linear.__bases__, 0
    nn.Linear.__bases__ = (Base,)
    try:
        return [vars(nn.Linear(30, 100)).get("tag") for _ in range(5)]
    finally:
        nn.Linear.__bases__ = bases


def other_attributes() -> Any:
    layer: Any = nn.Linear.__new__(nn.Linear)
    layer.__dict__ = own = Counting()
    own.names = []
    layer.__init__(30, 100)
    return own.names


CHANGES = (other_containers, other_parameters, other_switch, other_bases, other_attributes)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_constructors_see_a_change(change: Callable[[], Any], mode: Any) -> None:
    def seen() -> Any:
        [nn.Linear(30, 100) for _ in range(4)]
        return change(), vars(nn.Linear(30, 100)).keys()

    eager = seen()
    with mode():
        assert seen() == eager
        assert seen() == eager


def _values_of(build: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    deferred = deferred_init(build)
    materialize_module(deferred)
    return [tensor.tolist() for tensor in eager.parameters()], [
        tensor.tolist() for tensor in deferred.parameters()
    ]


def test_a_method_of_parameters() -> None:
    """Of parameters alone: ``torch.Tensor`` has torch's own."""

    def build() -> nn.Module:
        layers = [nn.Linear(30, 4) for _ in range(5)]
        nn.init.uniform_(layers[1].weight)
        nn.Parameter.uniform_ = lambda self, *_, **__: self.fill_(0.25)  # type: ignore[method-assign]
        try:
            layers[0].reset_parameters()
            nn.init.uniform_(layers[1].weight)
            return nn.Sequential(*layers[:2], nn.Linear(30, 4))
        finally:
            del nn.Parameter.uniform_

    eager, deferred = _values_of(build)
    assert deferred == eager


def test_attributes_that_a_reset_reads() -> None:
    """The reset of a layer gets its parameters by ``__getattr__``, which may give others."""

    def build() -> nn.Module:
        layers = [nn.LayerNorm(4) for _ in range(5)]
        original = nn.Module.__getattr__

        def read(self: Any, name: str) -> Any:
            value = original(self, name)
            return value.detach().clone() if name == "weight" else value

        with torch.no_grad():
            layers[0].weight.fill_(7.0)
        with mock.patch.object(nn.Module, "__getattr__", read):
            layers[0].reset_parameters()
        return nn.Sequential(layers[0])

    eager, deferred = _values_of(build)
    assert deferred == eager
    with fake_mode():
        assert build()[0].weight._version == 2  # type: ignore[index, union-attr]


class Three(enum.IntEnum):
    THREE = 3


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_sizes_whose_elements_are_of_a_class(mode: Any) -> None:
    def shape() -> str:
        [nn.LayerNorm(torch.Size([3])) for _ in range(4)]
        own = [nn.LayerNorm(torch.Size([Three.THREE])) for _ in range(3)]
        return repr([layer.normalized_shape for layer in (*own, nn.LayerNorm(torch.Size([3])))])

    eager = shape()
    with mode():
        assert shape() == eager


def test_threads_enter_and_leave_modes_while_a_layer_is_learned() -> None:
    """The set of modes is not iterated while another thread changes it."""

    class Set(set[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("another thread may change it meanwhile")

        def copy(self) -> set[Any]:
            return set(super().__iter__())

    with fake_mode(), mock.patch.object(modes, "on_any_thread", Set(modes.on_any_thread)):
        assert effects._is_only_thread() is cache.settings.enabled


def test_many_threads_learn() -> None:
    interval, errors = sys.getswitchinterval(), []

    def build(sizes: range) -> None:
        try:
            for size in sizes:
                with fake_mode():
                    nn.Linear(size, 3), nn.Linear(size, 3)
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=build, args=(range(i, 400, 4),)) for i in range(1, 5)]
    sys.setswitchinterval(1e-6)
    try:
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    finally:
        sys.setswitchinterval(interval)
    assert not errors
