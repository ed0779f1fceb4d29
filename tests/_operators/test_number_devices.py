"""CPU tensors of no dims among tensors on fake CUDA: taken and refused as by torch's CUDA backend.

``tests/_operators/worker_number_devices`` compares the operators of OpInfo with that backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torchfake import deferred_mode, fake_mode

CALLS: dict[str, tuple[Callable[..., Any], int, tuple[int, ...]]] = {
    # the call, its number of tensors, and which of them must not be a number on the CPU
    "add": (torch.add, 2, ()),
    "where": (lambda x, y: torch.where(x > 0, x, y), 2, ()),
    "logical_and": (torch.logical_and, 2, (0,)),
    "logical_or": (torch.logical_or, 2, (0,)),
    "logical_xor": (torch.logical_xor, 2, (0,)),
    "mse_loss": (F.mse_loss, 2, (0, 1)),
    "smooth_l1_loss": (F.smooth_l1_loss, 2, (0, 1)),
    "huber_loss": (F.huber_loss, 2, (0, 1)),
    "binary_cross_entropy": (torch._C._nn.binary_cross_entropy, 2, (0, 1)),
    "binary_cross_entropy_with_logits": (torch.binary_cross_entropy_with_logits, 2, (1,)),
    "soft_margin_loss": (F.soft_margin_loss, 2, (0,)),
    "masked_fill": (lambda x, n: x.masked_fill(x > 0, n), 2, (0,)),
    "masked_fill mask": (lambda x, m: x.masked_fill(m > 0, 1.0), 2, (0, 1)),
    "masked_select": (lambda x, m: x.masked_select(m > 0), 2, (0, 1)),
    "addr": (lambda x, y, z: torch.addr(x, y, z), 3, (0, 1, 2)),
    "normal": (torch.normal, 2, (0, 1)),
    "block_diag": (torch.block_diag, 2, (0, 1)),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_as_on_cuda(name: str, mode: Callable[..., Any]) -> None:
    call, num_tensors, refused = CALLS[name]
    with mode(fake_cuda=True):
        for number in range(num_tensors):
            given = [torch.ones(300, device="cuda") for _ in range(num_tensors)]
            given[number] = torch.ones(())
            if number in refused:
                with pytest.raises(RuntimeError, match="on the same device"):
                    call(*given)
            else:
                assert call(*given).device.type == "cuda"


def put(x: torch.Tensor, index: Any, value: torch.Tensor) -> torch.Tensor:
    x[index] = value
    return x


READ: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "fill_": lambda x, n: x.fill_(n),
    "fill": torch.fill,
    "by a mask": lambda x, n: put(x, x == 0, n),
    "by indices": lambda x, n: put(x, torch.tensor([0]), n),
    "index_put": lambda x, n: x.index_put((torch.tensor([0]),), n, accumulate=True),
    "index_fill": lambda x, n: x.index_fill(
        0, torch.zeros(1, dtype=torch.long, device=x.device), n
    ),
    "masked_fill": lambda x, n: x.masked_fill(x == 0, n),
    "where": lambda x, n: torch.where(x == 0, n, x),
}
ONLY_ON_CUDA = "masked_fill", "where"


@pytest.mark.parametrize("own", ["cpu", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_a_number_is_read_on_any_device(name: str, own: str, mode: Callable[..., Any]) -> None:
    """As torch's CUDA backend does with two devices."""
    with mode(fake_cuda=2):
        for device in ("cpu", "cuda:0", "cuda:1"):
            x, number = torch.zeros(3, device=own), torch.ones((), device=device)
            if name in ONLY_ON_CUDA and own == "cpu" != device:
                with pytest.raises(RuntimeError, match="on the same device"):
                    READ[name](x, number)
            else:
                assert READ[name](x, number).device == torch.device(own)


def test_a_row_of_one_number_is_not_read_on_another_device() -> None:
    with fake_mode(fake_cuda=2), pytest.raises(RuntimeError, match="on the same device"):
        READ["index_put"](torch.zeros(3), torch.ones(1, device="cuda"))


def test_a_number_that_is_read_is_known() -> None:
    with fake_mode(fake_cuda=2):
        number = torch.tensor(2.0, device="cuda:1")
        assert torch.zeros(2).fill_(number).tolist() == [2, 2]
        assert put(torch.zeros(2), torch.tensor([0]), number).tolist() == [2, 0]


def test_mask_on_another_device() -> None:
    with fake_mode(fake_cuda=True), pytest.raises(RuntimeError, match="on the same device"):
        torch.randn(300, device="cuda").masked_select(torch.ones(300, dtype=torch.bool))


def test_matrix_added_to_a_product() -> None:
    with fake_mode(fake_cuda=True):
        matrix = torch.randn(30, 30, device="cuda")
        with pytest.raises(RuntimeError, match="on the same device"):
            torch.addmm(torch.ones(()), matrix, matrix)
