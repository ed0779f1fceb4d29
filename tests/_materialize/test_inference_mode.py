"""Inference mode inside, around and after construction: kinds of tensors, and their bits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.oracle import bits
from torchfake import deferred_init, is_deferred, materialize_module

CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "normal": nullcontext,
}

INITIALIZERS = [
    "uniform_", "normal_", "trunc_normal_", "ones_", "zeros_", "eye_", "xavier_uniform_",
    "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_",
]  # fmt: skip


class Initialized(nn.Module):
    """Parameters made in one mode, and a buffer that an initializer fills in another."""

    def __init__(self, name: str, inner: str) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        arguments = (0.3,) if name == "sparse_" else ()
        with CONTEXTS[inner](), torch.no_grad():
            filled = getattr(nn.init, name)(torch.empty(6, 5), *arguments)
            self.register_buffer("filled", filled)
            self.register_buffer("row", self.filled[1])
            self.register_buffer("turned", self.filled.mT)
            self.total = float(self.filled.sum())
            self.read = self.filled.flatten()[0].item(), bool((self.filled > 0).any())


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("outer", CONTEXTS)
@pytest.mark.parametrize("inner", CONTEXTS)
@pytest.mark.parametrize("last", CONTEXTS)
def test_initializers(name: str, outer: str, inner: str, last: str) -> None:
    torch.manual_seed(0)
    with CONTEXTS[outer]():
        eager = Initialized(name, inner)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    with CONTEXTS[outer]():
        module = deferred_init(Initialized, name, inner)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.read == eager.read
    with CONTEXTS[last]():
        materialize_module(module)
    assert not is_deferred(module)
    for own, true in zip(tensors(module), tensors(eager), strict=True):
        assert bits(own) == bits(true)
        assert own.is_inference() == true.is_inference()
        assert own._is_view() == true._is_view()


def tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def refused(operation: Callable[[Tensor], Any], tensor: Tensor) -> str:
    try:
        operation(tensor)
    except RuntimeError as error:
        return str(error).split(".")[0]
    return ""


OPERATIONS: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda t: t.add_(1),
    "row": lambda t: t[0].zero_(),
    "setitem": lambda t: t.__setitem__(0, 1),
    "view": lambda t: t.view(-1).normal_(),
    "data": lambda t: t.data.add_(1),
    "detach": lambda t: t.detach().t_(),
    "parameter": nn.Parameter,
    "requires_grad_": lambda t: t.requires_grad_(),
    "set": lambda t: setattr(t, "data", torch.ones(2)),
    "conj": lambda t: setattr(t, "data", torch.ones(2, dtype=torch.complex64).conj()),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_eager_refuses_outside_is_refused(name: str) -> None:
    def build() -> Tensor:
        with torch.inference_mode():
            made = torch.ones(2, 3)
        said.append(refused(OPERATIONS[name], made))
        kinds.append(made.is_inference())
        return made

    said: list[str] = []
    kinds: list[bool] = []
    build()
    deferred_init(build)
    assert said[0] == said[1]
    assert kinds[0] == kinds[1]
