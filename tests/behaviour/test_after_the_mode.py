"""Tensors whose mode has ended behave as real tensors would, and may go to any device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.behaviour.conftest import matrix, network
from tests.conftest import (
    assert_outlives,
)
from torchfake import fake_mode

TENSOR_USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda a: a + 1,
    "radd": lambda a: 1 - a,
    "matmul": lambda a: a @ a.mT,
    "inplace": lambda a: a.add_(1).t_(),
    "slices": lambda a: (a[1:, ::2], a[..., None], a[a.new_tensor([0, 2], dtype=torch.int64)]),
    "mixes_with_real": lambda a: a + torch.ones(4),
    "cat_with_real": lambda a: torch.cat([a, torch.ones(1, 4)]),
    "new_from": lambda a: (a.new_zeros(2), a.new_ones(2, 3), a.new_full((2,), 1.0)),
    "new": lambda a: (a.new(2, 3), a.new(), a.new([1.0, 2.0]), a.new(torch.Size([2]))),
    "likes": lambda a: (torch.empty_like(a), torch.rand_like(a), torch.full_like(a, 2.0)),
    "to_dtype": lambda a: (a.half(), a.double(), a.to(torch.int8), a.type(torch.bfloat16)),
    "type_text": lambda a: (a.type(), a.bool().type(), a.to(torch.complex64).type()),
    "set_data": lambda a: setattr(a, "data", a.data.new_ones(5, 2)) or a,
    "detach": lambda a: (a.detach(), a.data, a.clone(), a.contiguous()),
    "requires_grad": lambda a: a.requires_grad_() * 2,
    "sizes": lambda a: (a.size(0), a.numel(), a.dim(), len(a), a.element_size(), a.nbytes),
    "questions": lambda a: (a.is_contiguous(), a.is_floating_point(), a.is_cuda, a.is_meta),
    "storage": lambda a: (a.untyped_storage().nbytes(), a.storage_offset(), a[1:].stride()),
    "iterates": lambda a: (list(a), a.unbind(1), a.split(2)),
    "resize": lambda a: a.resize_(2, 3),
    "complex": lambda a: (
        torch.complex(a, a).conj(),
        torch.complex(a, a).mH.real,
        torch.fft.rfft(a),
    ),
}


@pytest.mark.parametrize("name", TENSOR_USES)
def test_tensors(name: str) -> None:
    """Tensors are used after their mode."""
    assert_outlives(matrix, TENSOR_USES[name])


MOVES = ["cuda:1", "cuda", torch.device("cuda", 3), "cpu"]


@pytest.mark.parametrize("device", MOVES, ids=str)
def test_devices_after_the_mode(device: Any) -> None:
    """A fake may be moved to any device after its mode, used there, and moved back."""
    expected = torch.device(device)
    if expected.type == "cuda":
        expected = torch.device("cuda", expected.index or 0)
    with fake_mode():
        module, x = network()
    moved, there = x.to(device), copy.deepcopy(module).to(device)
    assert moved.device == expected
    assert {p.device for p in there.parameters()} == {expected}
    out = there(moved)
    out.sum().backward()
    assert {p.grad.device for p in there.parameters()} == {expected}
    assert out.device == expected
    assert out.cpu().device.type == x.device.type == "cpu"
    assert x.to(moved).device == expected
    assert x.to(3).device == x.cuda(3).device == torch.device("cuda:3")
    assert torch.zeros_like(moved).device == torch.empty_like(x, device=device).device == expected
    assert not torch.cuda.is_initialized()


def test_two_devices_after_the_mode() -> None:
    """The error is torch's, with the operator's name."""
    with fake_mode():
        a = torch.ones(3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        a + a.to("cuda:1")
    assert (a.to("cuda:1") + torch.tensor(1.0)).device == torch.device("cuda:1")
