"""Numbers of dims that eager refuses and torch's Python accepts, of known and of unknown values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import randn, tensor
from torch.nn import functional as F

from torchfake import deferred_mode, fake_mode

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rows of a number": lambda number: number.index_select(0, tensor([0, 0])),
    "no rows of a number": lambda number: number.index_select(0, tensor([]).long()),
    "a row of a number": lambda number: number.index_select(0, tensor([0])),
    "rows into out=": lambda number: torch.index_select(
        number, 0, tensor([0, 0]), out=torch.empty(0)
    ),
    "searched in a number": lambda number: torch.searchsorted(number, number),
    "values searched in a number": lambda number: torch.searchsorted(number, torch.ones(2)),
    "a number searched in rows": lambda number: torch.searchsorted(torch.ones(2, 3), 1.5),
    "a 0-dim value searched in rows": lambda number: torch.searchsorted(torch.ones(2, 3), number),
    "a number searched in a row": lambda number: torch.searchsorted(torch.ones(3), 1.5),
    "a side that does not exist": lambda number: torch.searchsorted(
        torch.ones(2, 3), 1.5, side="x"
    ),
    "integers up to a row": lambda number: torch.randint_like(torch.ones(2), tensor([5])),
    "integers up to a number": lambda number: torch.randint_like(torch.ones(2), tensor(5)),
    "a group's vector": lambda number: F.grouped_mm(randn(20, 30), randn(30)),
    "a vector by groups": lambda number: F.grouped_mm(randn(20), randn(3, 20, 30)),
    "a batch of groups": lambda number: F.grouped_mm(randn(2, 3, 4, 5), randn(4, 5)),
}


def outcome(mode: Any, call: Callable[[torch.Tensor], Any], num_elements: int) -> Any:
    with mode():
        try:
            return call(randn(num_elements).sum()).shape
        except RuntimeError as error:
            return str(error)


@pytest.mark.parametrize("num_elements", [2, 100])  # of 2 drawn elements the values are known
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", CALLS)
def test_eager_decides(name: str, mode: Any, num_elements: int) -> None:
    expected = outcome(nullcontext, CALLS[name], num_elements)
    assert outcome(mode, CALLS[name], num_elements) == expected


@pytest.mark.parametrize("name", [name for name in CALLS if "integers" not in name])
def test_on_cuda_the_same_is_refused(name: str) -> None:
    expected = outcome(nullcontext, CALLS[name], 100)
    with fake_mode(fake_cuda=True), torch.device("cuda"):
        assert outcome(nullcontext, CALLS[name], 100) == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_end_of_a_range_is_on_the_cpu(device: str) -> None:
    with fake_mode(fake_cuda=True):
        ones = torch.ones(2, device=device)
        with pytest.raises(RuntimeError, match="high must be a scalar tensor and on CPU"):
            torch.randint_like(ones, tensor(5, device="cuda"))
        assert torch.randint_like(ones, tensor(5)).device == ones.device
