"""Fake quantization in modes: metadata and bits of eager, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle import bits
from torchfake import deferred_mode, fake_mode, materialize_tensor

X = torch.linspace(-20, 20, 24).reshape(2, 3, 4).transpose(0, 2)
RANGE = (-128, 127)


def scale(length: int) -> Tensor:
    return torch.full((length,), 0.1)


def integer(length: int) -> Tensor:
    return torch.zeros(length, dtype=torch.int32)


def observed(x: Tensor) -> Tensor:
    on, low, high = torch.ones(1, dtype=torch.int64), torch.zeros(1), torch.ones(1)
    state = (x, on, on, low, high, scale(1), integer(1), 0.01)
    return torch.fused_moving_avg_obs_fake_quant(*state, *RANGE, -1, False, False)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, *RANGE),
    "tensor, as tensors": lambda x: torch.fake_quantize_per_tensor_affine(
        x, scale(1), integer(1), *RANGE
    ),
    "channel": lambda x: torch.fake_quantize_per_channel_affine(x, scale(3), integer(3), 1, *RANGE),
    "learned": lambda x: torch._fake_quantize_learnable_per_tensor_affine(
        x, scale(1).requires_grad_(), torch.zeros(1).requires_grad_(), *RANGE, 1.0
    ),
    "learned, channel": lambda x: torch._fake_quantize_learnable_per_channel_affine(
        x, scale(3).requires_grad_(), torch.zeros(3).requires_grad_(), 1, *RANGE, 1.0
    ),
    "observed": observed,
}


def step(program: Callable[[Tensor], Any]) -> list[Tensor]:
    x = X.clone().requires_grad_()
    result = program(x)
    result.sum().backward()
    assert x.grad is not None
    return [result.detach(), x.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name: str) -> None:
    expected = step(PROGRAMS[name])
    with fake_mode():
        fakes = step(PROGRAMS[name])
    with deferred_mode():
        deferred = step(PROGRAMS[name])
    for fake, later, real in zip(fakes, deferred, expected, strict=True):
        described = real.shape, real.stride(), real.dtype
        assert (fake.shape, fake.stride(), fake.dtype) == described
        made = materialize_tensor(later)
        assert (made.shape, made.stride(), made.dtype) == described
        assert bits(made) == bits(real)
