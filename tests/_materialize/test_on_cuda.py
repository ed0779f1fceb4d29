"""Deferred modules on a real CUDA device, against eager on that device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle import assert_same, reversed_one_at_a_time
from torchfake import deferred_init, materialize_module

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64, padding_idx=0, device="cuda")
        self.layers = nn.Sequential(*(nn.Linear(64, 64, device="cuda") for _ in range(3)))
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(64, 64, device="cuda")))
        self.orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(64, 64, device="cuda")))
        self.large = nn.Parameter(torch.randn(2048, 2048, device="cuda"))
        self.host = nn.Linear(64, 64)


def seeded(build: Callable[[], Any]) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    return build(), torch.cuda.get_rng_state()


@pytest.mark.parametrize("order", [materialize_module, reversed_one_at_a_time])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_eager_on_the_device(order: Callable[[Any], Any], dtype: torch.dtype) -> None:
    eager, state = seeded(lambda: Model().to(dtype))
    made, after = seeded(lambda: deferred_init(lambda: Model().to(dtype)))
    assert torch.equal(after, state)
    order(made)
    assert torch.equal(torch.cuda.get_rng_state(), after)
    assert_same(eager, made)


def test_built_on_the_host_and_moved() -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(3)))

    eager, _ = seeded(lambda: build().cuda())
    made, _ = seeded(lambda: deferred_init(build))
    assert_same(eager, materialize_module(made, device="cuda"))
    moved, _ = seeded(lambda: deferred_init(lambda: build().cuda()))
    assert_same(eager, materialize_module(moved))


def test_peak_memory_is_the_model_s() -> None:
    made, _ = seeded(lambda: deferred_init(lambda: nn.Linear(8192, 8192, device="cuda")))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    materialize_module(made)
    size = sum(p.numel() * p.element_size() for p in made.parameters())
    assert torch.cuda.max_memory_allocated() - before <= 1.02 * size + 1024
