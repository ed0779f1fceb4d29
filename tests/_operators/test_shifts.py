"""``<<`` and ``>>`` of all dtypes and kinds of operands, in place too: results as in eager."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode

SHIFTS = operator.lshift, operator.rshift, operator.ilshift, operator.irshift


def outcomes(device: str) -> dict[Any, Any]:
    """The metadata of each result, or the class of the error."""
    counts = torch.arange(4, device=device)
    operands = [
        *(counts.to(dtype) for dtype in (torch.bool, torch.uint8, torch.int8, torch.float32)),
        counts, counts > 1, counts[1], (counts > 1)[1],
    ]  # fmt: skip
    found = {}
    for shift, a, b in itertools.product(SHIFTS, operands, [*operands, 1, True, 1.5]):
        key = shift, len(found)
        try:
            result = shift(a.clone(), b)
            found[key] = result.dtype, result.shape, result.stride()
        except RuntimeError:
            found[key] = RuntimeError
    return found


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_shifts_take_and_refuse_the_dtypes_of_eager(mode: Any, device: str) -> None:
    expected = outcomes("cpu")
    with mode(fake_cuda=device == "cuda"):
        assert outcomes(device) == expected


def test_a_shifted_mask_has_the_values_of_eager() -> None:
    with fake_mode():
        mask = torch.arange(4) > 1
        assert (mask << 1).tolist() == [0, 0, 2, 2]
        assert (torch.arange(4) >> mask).tolist() == [0, 1, 1, 1]
