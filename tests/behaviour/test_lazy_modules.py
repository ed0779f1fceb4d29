"""Lazy modules are converted before and after they have a shape, in every mode, as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle import bits
from torchfake import (
    deferred_mode,
    fake_like,
    fake_mode,
    is_fake,
    materialize_module,
    meta_init,
)

_CONVERSIONS: dict[str, Callable[[nn.Module], Any]] = {
    "half": lambda module: module.half(),
    "double": lambda module: module.double(),
    "float": lambda module: module.float(),
    "bfloat16, which eager refuses": lambda module: module.bfloat16(),
    "cpu": lambda module: module.cpu(),
    "to a dtype": lambda module: module.to(torch.bfloat16),
    "to a device": lambda module: module.to("cpu"),
    "to both": lambda module: module.to("cpu", torch.float64),
    "share_memory, which eager refuses": lambda module: module.share_memory(),
    "apply": lambda module: module._apply(lambda tensor: tensor),
}
_MODES = pytest.mark.parametrize("mode", [fake_mode, deferred_mode, meta_init])
_WHEN = pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "afterwards"])


def _build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(5))


def _described(module: nn.Module) -> Any:
    named = [*module.named_parameters(), *module.named_buffers()]
    return [(name, getattr(type(t), "_fake_of", type(t)), t.dtype) for name, t in named]


def _outcome(convert: Callable[[nn.Module], Any], module: nn.Module) -> Any:
    try:
        convert(module)
    except (RuntimeError, ValueError) as error:
        return type(error), str(error)
    return None


@_WHEN
@_MODES
@pytest.mark.parametrize("name", _CONVERSIONS)
def test_a_lazy_module_is_converted(
    name: str, mode: Callable[[], AbstractContextManager[Any]], is_inside: bool
) -> None:
    expected = _build()
    refusal = _outcome(_CONVERSIONS[name], expected)
    with mode():
        module = _build()
        found = _outcome(_CONVERSIONS[name], module) if is_inside else None
    found = found if is_inside else _outcome(_CONVERSIONS[name], module)
    assert found == refusal
    if refusal is None:
        named, wanted = _described(module), _described(expected)
        assert [row[::2] for row in named] == [row[::2] for row in wanted]
        assert all(is_fake(tensor) for tensor in module.parameters())


@pytest.mark.parametrize("name", ["half", "double", "to a dtype"])
def test_it_is_run_and_materialized(name: str) -> None:
    def program() -> nn.Module:
        module = _build()
        _CONVERSIONS[name](module)
        dtype = next(module.parameters()).dtype
        module(torch.randn(2, 3, 8).to(dtype))
        return module

    expected = program()
    with deferred_mode():
        module = program()
    materialize_module(module)
    for (key, found), wanted in zip(
        module.state_dict().items(), expected.state_dict().values(), strict=True
    ):
        assert found.dtype == wanted.dtype
        assert bits(found) == bits(wanted), key


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_it_moves_to_fake_cuda(mode: Any) -> None:
    with mode(fake_cuda=True):
        module = _build().cuda()
        assert module(torch.randn(2, 3, 8, device="cuda")).device == torch.device("cuda:0")
        assert module.cpu()(torch.randn(2, 3, 8)).device == torch.device("cpu")
    assert not nn.modules.lazy.is_lazy(module[0].weight)


@pytest.mark.parametrize("name", _CONVERSIONS)
def test_a_fake_copy_is_converted(name: str) -> None:
    expected = _build()
    refusal = _outcome(_CONVERSIONS[name], expected)
    module = fake_like(_build())
    assert _outcome(_CONVERSIONS[name], module) == refusal
    if refusal is None:
        named, wanted = _described(module), _described(expected)
        assert [row[::2] for row in named] == [row[::2] for row in wanted]
        dtype = next(expected.parameters()).dtype
        expected(torch.randn(2, 3, 8).to(dtype))
        with fake_mode():
            module(torch.randn(2, 3, 8).to(dtype))
        assert [p.shape for p in module.parameters()] == [p.shape for p in expected.parameters()]
        assert all(is_fake(parameter) for parameter in module.parameters())


def test_a_fake_copy_on_another_device() -> None:
    module = fake_like(_build(), device="cuda")
    assert {parameter.device.type for parameter in module.parameters()} == {"cuda"}


@_MODES
@pytest.mark.parametrize("name", _CONVERSIONS)
def test_a_real_lazy_module_that_is_used_in_a_mode_becomes_fake(
    name: str, mode: Callable[[], AbstractContextManager[Any]]
) -> None:
    def program(convert: Callable[[nn.Module], Any], module: nn.Module) -> nn.Module:
        convert(module)
        module(torch.randn(2, 3, 8).to(module[0].weight.dtype))  # type: ignore[index]
        return module

    expected, module = _build(), _build()
    weights = dict(module.named_parameters())
    refusal = _outcome(_CONVERSIONS[name], expected)
    if refusal is not None:
        with mode():
            assert _outcome(_CONVERSIONS[name], module) == refusal
        return
    expected(torch.randn(2, 3, 8).to(expected[0].weight.dtype))  # type: ignore[index]
    with mode():
        program(_CONVERSIONS[name], module)
    assert all(map(is_fake, module.parameters()))
    assert all(weights[n] is p for n, p in module.named_parameters())
    for found, wanted in zip(module.parameters(), expected.parameters(), strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)


def test_a_real_lazy_module_is_materialized_as_in_eager() -> None:
    def program(module: nn.Module) -> nn.Module:
        torch.manual_seed(1)
        module.double()(torch.randn(2, 3, 8, dtype=torch.float64))
        return module

    module, expected = _build(), program(_build())
    with deferred_mode():
        program(module)
    materialize_module(module)
    for name, wanted in expected.state_dict().items():
        assert bits(module.state_dict()[name]) == bits(wanted), name


def _load(has_shape: bool, module: nn.Module) -> Any:
    other = _build()
    if has_shape:
        module(torch.randn(2, 3, 8))
    module.load_state_dict(other.state_dict())
    return _described(module)[0][::2], module(torch.randn(2, 3, 8)).shape


@_MODES
@pytest.mark.parametrize("has_shape", [False, True])
def test_it_loads_what_has_no_shape(mode: Any, has_shape: bool) -> None:
    expected = _outcome(lambda module: _load(has_shape, module), _build())
    assert (expected is not None) is has_shape
    with mode():
        assert _outcome(lambda module: _load(has_shape, module), _build()) == expected


@_MODES
@pytest.mark.parametrize("kind", [nn.LazyBatchNorm1d, lambda: nn.LazyLinear(3)])
def test_a_deep_copy(kind: Callable[[], nn.Module], mode: Any) -> None:
    def refusal() -> str:
        found = _outcome(copy.deepcopy, kind())
        return "" if found is None else found[1].split(" in <")[0]

    expected = refusal()
    with mode():
        assert refusal() == expected
