"""Operators of other libraries with a derivative for the CPU, or for CUDA, alone."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.programs import assert_program
from torchfake import deferred_mode, fake_like, fake_mode, is_fake, materialize_tensor

NAMESPACE = "own_autograd_of_tests"


class _Twice(torch.autograd.Function):
    """Twice the input, with a gradient that says which derivative this is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gradient: float) -> torch.Tensor:
        ctx.gradient = gradient
        with torch._C._AutoDispatchBelowAutograd():
            return getattr(torch.ops, NAMESPACE).twice(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad * ctx.gradient, None


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[Any]:
    library = torch.library.Library(NAMESPACE, "DEF")
    for name in ("twice", "twice_on_cpu"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x + x, "CPU")
        torch.library.register_fake(f"{NAMESPACE}::{name}", torch.empty_like, lib=library)
    library.impl("twice", lambda x: _Twice.apply(x, 3.0), "Autograd")
    library.impl("twice", lambda x: _Twice.apply(x, 5.0), "AutogradCPU")
    library.impl("twice", lambda x: _Twice.apply(x, 7.0), "AutogradCUDA")
    library.impl("twice_on_cpu", lambda x: x.sin() * 2, "AutogradCPU")  # composite
    yield getattr(torch.ops, NAMESPACE)
    library._destroy()


@pytest.mark.parametrize("name", ["twice", "twice_on_cpu"])
def test_fakes_have_the_derivative_of_their_device(name: str, operators: Any) -> None:
    def program() -> Any:
        x = torch.randn(100, requires_grad=True)
        result = getattr(operators, name)(x)
        result.sum().backward()
        return result.detach(), x.grad

    assert_program(program)


def test_known_gradients(operators: Any) -> None:
    found = {}
    for device in ("cpu", "cuda", "mps"):
        with fake_mode(fake_device=None if device == "cpu" else device):
            x = torch.ones(2, device=device, requires_grad=True)
            operators.twice(x).sum().backward()
            found[device] = x.grad.tolist()
    assert found == {"cpu": [5.0, 5.0], "cuda": [7.0, 7.0], "mps": [3.0, 3.0]}


def test_outside_modes_and_in_inference_mode(operators: Any) -> None:
    x = fake_like(torch.ones(3, requires_grad=True))
    assert operators.twice_on_cpu(x).grad_fn.name() == "MulBackward0"
    for context in (torch.inference_mode, fake_mode):
        with context(), torch.inference_mode():
            result = operators.twice(fake_like(torch.ones(3)))
        assert is_fake(result)
        assert not result.requires_grad


MODULE = f"""
import torch

library = torch.library.Library("{NAMESPACE}", "FRAGMENT")
library.define("later(Tensor x) -> Tensor")
library.impl("later", lambda x: x + x, "CPU")
library.impl("later", lambda x: x * 2, "AutogradCPU")
torch.library.register_fake("{NAMESPACE}::later", torch.empty_like, lib=library)
"""


def test_operators_of_a_library_that_is_imported_in_a_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operators: Any
) -> None:
    (tmp_path / "registers_an_operator.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with deferred_mode():
        x = torch.ones(3, requires_grad=True)
        module = importlib.import_module("registers_an_operator")
        operators.later(x).sum().backward()
    assert materialize_tensor(x.grad).tolist() == [2.0, 2.0, 2.0]
    module.library._destroy()
