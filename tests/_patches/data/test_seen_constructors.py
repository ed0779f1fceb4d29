"""Constructors of layers are seen by whoever sees them in eager: classes, hooks, replacements."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests._patches.data.test_initializers import Calls, Operators
from torchfake import deferred_mode, fake_mode
from torchfake._cache import cache


@pytest.fixture(autouse=True)
def _nothing_learned() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


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
