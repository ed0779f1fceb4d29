"""Constructors of layers are seen by whoever sees them in eager: classes, hooks, replacements."""

from __future__ import annotations

import collections
import contextlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests._patches.sources.test_initializers import Calls, Operators
from torchfake import deferred_mode, fake_mode

pytestmark = pytest.mark.usefixtures("unchecked", "nothing_learned")


class Lower(nn.Linear):
    """A layer that sees what its constructor does."""

    def __init__(self, *args: Any) -> None:
        self.seen: list[str] = []
        super().__init__(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "seen":
            self.seen.append(name)
            return super().__setattr__(name, value)
        object.__setattr__(self, name, value)
        return None

    def register_parameter(self, name: str, param: Any) -> None:
        self.seen.append(name)
        super().register_parameter(name, param)


def test_a_class_of_the_program() -> None:
    def seen() -> list[Any]:
        return [Lower(30, 100).seen for _ in range(4)]

    eager = seen()
    with fake_mode():
        [nn.Linear(30, 100) for _ in range(4)]
        assert seen() == eager


def counting(calls: collections.Counter[str], name: str, function: Any) -> Any:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return function(*args, **kwargs)

    return counted


REPLACED: dict[str, tuple[Any, str]] = {
    "register_parameter": (nn.Module, "register_parameter"),
    "register_buffer": (nn.Module, "register_buffer"),
    "__setattr__": (nn.Module, "__setattr__"),
    "__init__": (nn.Module, "__init__"),
    "reset of Linear": (nn.Linear, "reset_parameters"),
    "reset of norms": (nn.modules.batchnorm._NormBase, "reset_parameters"),
    "statistics of norms": (nn.modules.batchnorm._NormBase, "reset_running_stats"),
    "padding": (nn.Embedding, "_fill_padding_idx_with_zero"),
    "Linear": (nn.Linear, "__init__"),
    "Parameter": (nn.modules.linear, "Parameter"),
    "Parameter of convolutions": (nn.modules.conv, "Parameter"),
    "kaiming_uniform_": (nn.init, "kaiming_uniform_"),
    "ones_": (nn.init, "ones_"),
    "empty": (torch, "empty"),
    "zeros": (torch, "zeros"),
    "tensor": (torch, "tensor"),
    "__getattr__": (nn.Module, "__getattr__"),
    "OrderedDict": (nn.modules.module, "OrderedDict"),
}


@pytest.mark.parametrize("is_inside", [False, True], ids=["before", "inside"])
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", REPLACED)
def test_what_somebody_has_replaced_is_called(name: str, mode: Any, is_inside: bool) -> None:
    owner, attribute = REPLACED[name]

    def build() -> None:
        for _ in range(3):
            nn.Linear(30, 100), nn.Conv2d(3, 80, 3), nn.BatchNorm2d(90)
            nn.Embedding(50, 20, padding_idx=1), nn.LayerNorm(70)

    def counted() -> collections.Counter[str]:
        calls: collections.Counter[str] = collections.Counter()
        replacement = counting(calls, name, getattr(owner, attribute))
        with mock.patch.object(owner, attribute, replacement):
            build()
        return calls

    eager = counted()
    assert eager[name]
    with mode():
        build()
        if is_inside:
            assert counted() == eager
            build()
    if not is_inside:
        calls: collections.Counter[str] = collections.Counter()
        replacement = counting(calls, name, getattr(owner, attribute))
        with mock.patch.object(owner, attribute, replacement), mode():
            build()
        assert calls == eager


def test_hooks_of_registrations_are_called() -> None:
    module = nn.modules.module

    def seen() -> list[str]:
        names: list[str] = []
        hooks = (
            module.register_module_parameter_registration_hook(lambda *a: names.append(a[1])),
            module.register_module_buffer_registration_hook(lambda *a: names.append(a[1])),
        )
        for _ in range(3):
            nn.Linear(30, 100), nn.BatchNorm2d(90)
        for hook in hooks:
            hook.remove()
        return names

    eager = seen()
    with fake_mode():
        for _ in range(3):
            nn.Linear(30, 100), nn.BatchNorm2d(90)
        assert seen() == eager


@pytest.mark.parametrize("watcher", [Calls, Operators])
def test_modes_of_the_program_see_all_calls(watcher: Any) -> None:
    def seen(is_known: bool) -> Any:
        with fake_mode():
            for _ in range(3 if is_known else 0):
                nn.Linear(30, 100), nn.BatchNorm2d(90)
            with watcher() as watched:
                nn.Linear(30, 100), nn.BatchNorm2d(90)
            return watched.seen

    assert seen(is_known=True) == seen(is_known=False)
    assert seen(is_known=True)


def times_called(
    mode: Any, owner: Any, name: str, replacement: Any, build: Callable[[], Any]
) -> list[Any]:
    """What `build` gives before, while and after something is replaced or set inside a mode."""
    with mode():
        found = [build() for _ in range(4)]
        with mock.patch.object(owner, name, replacement, create=True):
            found += [build() for _ in range(3)]
        return [*found, build(), build()]


def seen_of(layer: nn.Module) -> list[Any]:
    return [[(n, p._version, p.requires_grad) for n, p in layer.named_parameters()],
            sorted(vars(layer)), torch.get_rng_state().sum().item()]  # fmt: skip


def reset_to_ones(layer: Any) -> None:
    nn.init.ones_(layer.weight)


SET_ON_CLASSES: dict[str, tuple[Any, str, Any, Callable[[], Any]]] = {
    "reset": (nn.Conv2d, "reset_parameters", reset_to_ones, lambda: nn.Conv2d(3, 80, 3)),
    "no reset": (nn.Conv2d, "reset_parameters", lambda self: None, lambda: nn.Conv2d(3, 80, 3)),
    "statistics": (nn.BatchNorm2d, "reset_running_stats", reset_to_ones,
                   lambda: nn.BatchNorm2d(80)),
    "quantizable": (nn.modules.linear.NonDynamicallyQuantizableLinear, "reset_parameters",
                    reset_to_ones, lambda: nn.MultiheadAttention(80, 4)),
    "__setattr__": (nn.Linear, "__setattr__",
                    lambda self, n, v: nn.Module.__setattr__(self, n, v) or
                    vars(self).setdefault("seen", 3), lambda: nn.Linear(30, 100)),
    "property": (nn.Linear, "in_features",
                 property(lambda self: self.kept, lambda self, v: setattr(self, "kept", v)),
                 lambda: nn.Linear(30, 100)),
    "math": (nn.modules.linear, "math", mock.Mock(sqrt=lambda n: 3.0), lambda: nn.Linear(30, 100)),
    "numbers": (nn.modules.normalization, "numbers", mock.Mock(Integral=str),
                lambda: nn.LayerNorm((30, 4))),
    "draws": (torch.Tensor, "uniform_", lambda self, *_, **__: self.fill_(3),
              lambda: nn.Linear(30, 100)),
    "fills": (nn.init, "_no_grad_fill_", lambda t, _: t, lambda: nn.LayerNorm(100)),
    "reads": (nn.Linear, "__getattr__",
              lambda self, n: vars(self).setdefault("seen", n) and nn.Module.__getattr__(self, n),
              lambda: nn.Linear(30, 100)),
}  # fmt: skip


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", SET_ON_CLASSES)
def test_what_is_set_on_a_class_of_layers_counts(name: str, mode: Any) -> None:
    *replaced, make = SET_ON_CLASSES[name]

    def seen() -> list[Any]:
        torch.manual_seed(3)
        return seen_of(make())

    eager = times_called(contextlib.nullcontext, *replaced, seen)
    assert times_called(mode, *replaced, seen) == eager


@pytest.mark.parametrize("owner", [nn.Linear, nn.Module])
def test_an_attribute_in_the_place_of_a_parameter(owner: Any) -> None:
    def refusal() -> str:
        with pytest.raises(KeyError) as error:
            nn.Linear(30, 100)
        return str(error.value)

    with mock.patch.object(owner, "weight", "x", create=True):
        eager = refusal()
    with fake_mode():
        for _ in range(4):
            nn.Linear(30, 100)
        with mock.patch.object(owner, "weight", "x", create=True):
            assert [refusal() for _ in range(3)] == [eager] * 3


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize(
    "hook",
    [
        lambda module, name, parameter: parameter.requires_grad_(False),
        lambda module, name, parameter: nn.Parameter(parameter.detach() * 2, False),
        lambda module, name, parameter: setattr(module, "seen", 1),
    ],
)
def test_nothing_is_learned_while_a_hook_is_registered(mode: Any, hook: Any) -> None:
    def seen() -> list[Any]:
        handle = nn.modules.module.register_module_parameter_registration_hook(hook)
        found = [seen_of(nn.Linear(30, 100)) for _ in range(3)]
        handle.remove()
        return [*found, *(seen_of(nn.Linear(30, 100)) for _ in range(4))]

    torch.manual_seed(3)
    eager = seen()
    torch.manual_seed(3)
    with mode():
        assert seen() == eager


def test_nothing_is_learned_of_a_replaced_initialiser() -> None:
    kaiming_uniform_ = nn.init.kaiming_uniform_

    def frozen(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return kaiming_uniform_(tensor.requires_grad_(False), *args, **kwargs)

    with fake_mode():
        for _ in range(3):
            nn.Linear(30, 100)
        with mock.patch.object(nn.init, "kaiming_uniform_", frozen):
            assert not nn.Linear(30, 100, bias=True).weight.requires_grad
        for _ in range(3):
            assert nn.Linear(30, 100, bias=True).weight.requires_grad


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_the_list_of_the_first_layer_is_its_own(mode: Any) -> None:
    with mode():
        for _ in range(5):
            layer = nn.Conv2d(3, 80, 3, padding="same")
            assert layer._reversed_padding_repeated_twice == [1, 1, 1, 1]
            layer._reversed_padding_repeated_twice[0] = 9


def test_the_signature_of_a_constructor() -> None:
    expected = inspect.getfullargspec(nn.Linear.__init__)
    with fake_mode():
        assert inspect.getfullargspec(nn.Linear.__init__) == expected
        layer: Any = nn.Linear.__new__(nn.Linear)
        assert inspect.signature(nn.Linear) == inspect.signature(layer.__init__)


@pytest.mark.parametrize("is_cuda", [False, True])
def test_a_function_that_is_replaced_at_the_first_recurrent_layer(is_cuda: bool) -> None:
    program = f"""
import torch, torchfake
from torch import nn
calls, linear = [], nn.functional.linear
nn.functional.linear = lambda *args: calls.append(1) or linear(*args)
mode = torchfake.fake_mode(fake_cuda=True) if {is_cuda} else torchfake.deferred_mode()
with mode:
    nn.LSTM(3, 4, device="cuda" if {is_cuda} else "cpu")(
        torch.randn(2, 3, device="cuda" if {is_cuda} else "cpu"))
nn.functional.linear = linear
print(len(calls))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "0", done.stderr
