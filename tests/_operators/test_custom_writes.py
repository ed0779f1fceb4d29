"""Writes by operators that a program defines, as autograd counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode

NAMESPACE = "custom_writes_of_tests"
MODES = (fake_mode, deferred_mode)


def _add_one(x: torch.Tensor) -> None:
    x.add_(1)


def _write_all(x: list[torch.Tensor], out: torch.Tensor) -> None:
    torch._foreach_add_(x, 1)
    out.add_(1)


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[Any]:
    library = torch.library.Library(NAMESPACE, "DEF")
    schemas: dict[str, tuple[str, str, Callable[..., Any], Callable[..., Any]]] = {
        "returned_": ("(Tensor(a!) x) -> Tensor(a!)", "CPU", lambda x: x.add_(1), lambda x: x),
        "add_": (
            "(Tensor(a!) x) -> ()",
            "CompositeExplicitAutograd",
            _add_one,
            lambda x: None,
        ),
        "all_": (
            "(Tensor(a!)[] x, *, Tensor(b!) out) -> ()",
            "CPU",
            _write_all,
            lambda x, out: None,
        ),
        "parts_": (
            "(Tensor(a!) x) -> ()",
            "CompositeImplicitAutograd",
            _add_one,
            lambda x: None,
        ),
    }
    for name, (schema, key, kernel, fake) in schemas.items():
        library.define(name + schema)
        library.impl(name, kernel, key)
        if key != "CompositeImplicitAutograd":
            torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)

    @torch.library.custom_op(f"{NAMESPACE}::filled", mutates_args={"out"})
    def filled(x: torch.Tensor, out: torch.Tensor) -> None:
        out.numpy()[...] = x.numpy() + 1

    filled.register_fake(lambda x, out: None)
    yield filled
    library._destroy()


def _of(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name)


def _versions(size: int) -> list[int]:
    found = []
    for name in ("returned_", "add_", "parts_"):
        x = torch.zeros(size)
        for _ in range(2):  # the second call is a hit in the cache
            _of(name)(x)
            found.append(x._version)
    x, out = torch.zeros(size), torch.zeros(size)
    for _ in range(2):
        _of("all_")([x, x.view(1, -1)], out=out)
        _of("filled")(x, out.detach())
        found += [x._version, out._version]
    return found


@pytest.mark.parametrize("size", [3, 20_000], ids=["known", "unknown"])
@pytest.mark.parametrize("mode", MODES)
def test_writes_are_counted(mode: Any, size: int) -> None:
    expected = _versions(size)
    with mode():
        assert _versions(size) == expected


@pytest.mark.parametrize("name", ["returned_", "add_", "parts_"])
@pytest.mark.parametrize("mode", MODES)
def test_a_written_tensor_of_a_graph_is_refused(mode: Any, name: str) -> None:
    def program() -> None:
        y = torch.ones(3, requires_grad=True).exp()
        with torch.no_grad():
            _of(name)(y)
        y.sum().backward()

    for context in (torch.enable_grad, mode):
        with context(), pytest.raises(RuntimeError, match="modified by an inplace operation"):
            program()


@pytest.mark.parametrize("mode", MODES)
def test_inference_tensors_are_refused(mode: Any) -> None:
    def program() -> None:
        with torch.inference_mode():
            x = torch.ones(3)
        _of("add_")(x)

    for context in (torch.enable_grad, mode):
        with context(), pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            program()
