"""Dtypes of packed weights, with which hardly a kernel computes, are refused where in eager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import describe
from torchfake import deferred_mode, fake_mode

DTYPES = (torch.uint4, torch.int1, torch.bits8, torch.bits16, torch.float4_e2m1fn_x2)
OPERATIONS: dict[str, Callable[[torch.dtype], Tensor]] = {
    "zeros": lambda dtype: torch.zeros(4, dtype=dtype),
    "ones": lambda dtype: torch.ones(4, dtype=dtype),
    "zero_": lambda dtype: torch.empty(4, dtype=dtype).zero_(),
    "fill_": lambda dtype: torch.empty(4, dtype=dtype).fill_(1),
    "clone": lambda dtype: torch.empty(4, dtype=dtype).clone(),
    "cat": lambda dtype: torch.cat([torch.empty(4, dtype=dtype)] * 2),
    "contiguous": lambda dtype: torch.empty(2, 2, dtype=dtype).t().contiguous(),
    "copy_ of floats": lambda dtype: torch.empty(4, dtype=dtype).copy_(torch.zeros(4)),
    "view": lambda dtype: torch.zeros(4, dtype=torch.uint8).view(dtype),
    "eq": lambda dtype: torch.empty(4, dtype=dtype) == 1,
}


def outcome(operation: Callable[[torch.dtype], Tensor], dtype: torch.dtype, mode: Any) -> Any:
    with mode:
        try:
            return describe(operation(dtype))
        except (NotImplementedError, RuntimeError) as error:
            return type(error)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_raw_dtypes(name: str, dtype: torch.dtype) -> None:
    expected = outcome(OPERATIONS[name], dtype, nullcontext())
    for mode in (fake_mode, deferred_mode):
        assert outcome(OPERATIONS[name], dtype, mode()) == expected
