"""Every function of ``torch.nn.init`` gives eager's metadata and moves no generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import (
    all_fake,
    describe,
    generators_stand_still,
)
from torchfake import fake_mode, is_fake


def filled(shape: tuple[int, ...] = (6, 4)) -> torch.Tensor:
    return torch.empty(shape)


INITIALIZERS: dict[str, Callable[[], Any]] = {
    "uniform_": lambda: nn.init.uniform_(filled(), -1.0, 2.0),
    "normal_": lambda: nn.init.normal_(filled(), 1.0, 0.2),
    "trunc_normal_": lambda: nn.init.trunc_normal_(filled(), 0.0, 0.5, -1.0, 1.0),
    "constant_": lambda: nn.init.constant_(filled(), 0.3),
    "ones_": lambda: nn.init.ones_(filled()),
    "zeros_": lambda: nn.init.zeros_(filled()),
    "eye_": lambda: nn.init.eye_(filled()),
    "dirac_": lambda: nn.init.dirac_(filled((4, 4, 3)), groups=2),
    "xavier_uniform_": lambda: nn.init.xavier_uniform_(filled(), gain=2.0),
    "xavier_normal_": lambda: nn.init.xavier_normal_(filled()),
    "kaiming_uniform_": lambda: nn.init.kaiming_uniform_(filled(), a=5**0.5),
    "kaiming_normal_": lambda: nn.init.kaiming_normal_(filled((8, 4, 3, 3)), mode="fan_out"),
    "orthogonal_": lambda: (nn.init.orthogonal_(filled()), nn.init.orthogonal_(filled((3, 8)))),
    "sparse_": lambda: nn.init.sparse_(filled(), sparsity=0.3),
    "calculate_gain": lambda: nn.init.calculate_gain("leaky_relu", 0.2),
}


_OLD_NAMES = {
    "uniform", "normal", "constant", "eye", "dirac", "xavier_uniform", "xavier_normal",
    "kaiming_uniform", "kaiming_normal", "orthogonal", "sparse",
}  # fmt: skip
"""Deprecated spellings of the same functions."""


def test_every_initializer_is_tested() -> None:
    """A new public function of torch.nn.init must be added to the table."""
    public = {
        name
        for name, value in vars(nn.init).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", "") == "torch.nn.init"
        and not isinstance(value, type)
    }
    assert public - _OLD_NAMES == set(INITIALIZERS)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(name: str) -> None:
    """Metadata as in eager, inside and after the mode, and the global generator never moves."""
    program = INITIALIZERS[name]
    torch.manual_seed(0)
    expected = describe(program())
    with generators_stand_still(), fake_mode():
        inside = program()
    assert describe(inside) == expected
    assert all_fake(inside)
    with fake_mode():
        made = torch.empty(6, 4)
    assert describe(_initialize(made, name)) == describe(_initialize(torch.empty(6, 4), name))
    assert is_fake(made)


def _initialize(tensor: torch.Tensor, name: str) -> Any:
    """Apply the initializer of that name to an existing tensor."""
    function = getattr(nn.init, name)
    if name == "calculate_gain":
        return function("relu")
    if name == "dirac_":
        return function(tensor.view(3, 2, 4))
    if name in ("constant_", "sparse_"):
        return function(tensor, 0.1)
    return function(tensor)


@pytest.mark.parametrize("name", [n for n in INITIALIZERS if n != "calculate_gain"])
def test_initializers_on_fake_cuda(name: str) -> None:
    """On fake CUDA, and in half precision."""
    for dtype in (torch.float32, torch.bfloat16):
        if name == "orthogonal_" and dtype is torch.bfloat16:
            continue  # LAPACK has no bfloat16, in eager either
        with fake_mode(fake_cuda=True), generators_stand_still():
            tensor = torch.empty(6, 4, device="cuda", dtype=dtype)
            _initialize(tensor, name)
        assert (tensor.device.type, tensor.dtype, tuple(tensor.shape)) == ("cuda", dtype, (6, 4))
        assert is_fake(tensor)
