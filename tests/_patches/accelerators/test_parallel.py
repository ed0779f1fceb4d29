"""``nn.DataParallel``: as in eager without a GPU, and refused on fake ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import _functions

from torchfake import fake_mode
from torchfake.errors import UnsupportedOpError


def test_without_fake_devices_it_runs_the_module() -> None:
    with fake_mode():
        parallel = nn.DataParallel(nn.Linear(4, 3))
        parallel(torch.randn(8, 4)).sum().backward()
        assert parallel.module.weight.grad.shape == (3, 4)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_fake_devices_it_is_refused(count: int, device: str) -> None:
    with fake_mode(fake_cuda=count):
        parallel = nn.DataParallel(nn.Linear(4, 3).cuda())
        with pytest.raises(UnsupportedOpError, match=r"DataParallel.*model\.module"):
            parallel(torch.randn(8, 4, device=device))
        assert parallel.module(torch.randn(8, 4, device="cuda")).shape == (8, 3)
    assert getattr(_functions, "_streams", None) is None  # which torch keeps for the process
