"""A run on one GPU stands for other GPUs: for those that would have answered all questions alike,
with the scratch memory that their kernels take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.inspect.memory.sizes_run import runs_of
from torchfake import fake_mode, profiles
from torchfake._core.gpu_profiles import AlikeGpus, CudaProfile
from torchfake.inspect import Estimate, estimate, fit

GPUS = [
    profiles()[name]
    for name in (
        *("a100-80gb", "h100-80gb", "h100pcie-80gb", "h20-96gb", "b200-180gb", "rtx4090-24gb"),
        *("v100-32gb", "t4-16gb", "mi300x-192gb", "mi250x-64gb"),
    )
]


class Attention(nn.Module):
    """Sums over many rows, and attention: both allocate other scratch memory on other GPUs."""

    def __init__(self, asks: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.inner, self.norm, self.asks = nn.Linear(64, 192), nn.LayerNorm(64), asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.asks()
        q, k, v = self.inner(self.norm(x)).unflatten(-1, (3, 4, 16)).unbind(-3)
        each = (t.transpose(1, 2) for t in (q, k, v))
        return nn.functional.scaled_dot_product_attention(*each).flatten()


def step(gpu: Any, dtype: torch.dtype, asks: Callable[[], Any] = lambda: None) -> Estimate:
    with fake_mode():
        net, x = Attention(asks).to(dtype), torch.empty(1, 4096, 64, dtype=dtype)
    return estimate(net, x, optimizer="sgd", keep_gradients=True, gpu=gpu)


def columns(found: Estimate) -> list[Any]:
    tables = [found.lives, found.first_lives]
    plain = [table._replace(scratch=()) for table in tables if table is not None]
    return [
        column.tolist() if isinstance(column, np.ndarray) else column
        for table in plain
        for column in table
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_run_for_several_gpus_is_that_of_each(dtype: torch.dtype) -> None:
    left, leaders, differ = list(GPUS), 0, 0
    while left:
        shared = step(AlikeGpus(*left), dtype)
        alike = shared.subject.alike
        assert alike is not None
        for gpu in alike.profiles:
            on, alone = shared.on(gpu), step(gpu, dtype)
            assert columns(on) == columns(alone)
            assert on.workspace_bytes == alone.workspace_bytes
            assert on.peak_reserved_bytes == alone.peak_reserved_bytes
            assert on.left_out == alone.left_out
            differ += columns(on) != columns(shared)
        left, leaders = [gpu for gpu in left if gpu not in alike.profiles], leaders + 1
    assert leaders == (3 if dtype == torch.bfloat16 else 1)
    assert differ


CARDS = [
    CudaProfile(f"{backend} {major}.{minor} {total}", total, major, minor, 100, "made up", backend)
    for major, minor, total, backend in (
        *((8, 0, 1000, "cuda"), (8, 6, 1000, "cuda"), (8, 0, 2000, "cuda"), (8, 0, 1000, "rocm")),
    )
]
QUESTIONS: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "capability": (lambda: torch.cuda.get_device_capability(), [0, 2, 3]),
    "a property": (lambda: torch.cuda.get_device_properties(0).minor, [0, 2, 3]),
    "memory": (lambda: torch.cuda.mem_get_info(), [0, 1, 3]),
    "name": (lambda: torch.cuda.get_device_name(), [0]),
    "all properties": (lambda: repr(torch.cuda.get_device_properties(0)), [0]),
    "backend": (lambda: torch.cuda.get_device_properties().warp_size, [0, 1, 2]),
    "nothing": (lambda: torch.cuda.device_count(), [0, 1, 2, 3]),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_run_stands_for_gpus_that_answer_the_program_alike(name: str) -> None:
    asks, left = QUESTIONS[name]
    alike = step(AlikeGpus(*CARDS), torch.float32, asks).subject.alike
    assert alike is not None
    assert alike.profiles == tuple(CARDS[i] for i in left)


def test_fit_runs_each_size_once_for_gpus_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = runs_of(monkeypatch)
    with fake_mode():
        net, x = Attention(), torch.empty(1, 4096, 64)
        given = estimate(net, x, optimizer="sgd")
    found = fit(given, *GPUS[:5], vary=None)
    assert len(ran) == 1
    for gpu, each in zip(GPUS, found, strict=False):
        alone = estimate(net, x, optimizer="sgd", gpu=gpu)
        assert each.peak_bytes == alone.peak_bytes
        assert each.peak_reserved_bytes == alone.peak_reserved_bytes
