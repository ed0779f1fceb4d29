"""``out=`` of operators whose result depends on values is written where it lies, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode

NUMBERS = [0.0, 1.0, 2.0, 3.0]


def selected_into_slice() -> Any:
    base, numbers = torch.zeros(6), torch.tensor(NUMBERS)
    torch.masked_select(numbers, numbers > 1, out=base[:2])
    return base


def selected_into_step() -> Any:
    base, numbers = torch.zeros(6), torch.tensor(NUMBERS)
    out = base[::2][:2]
    torch.masked_select(numbers, numbers > 1, out=out)
    return base, out


def found_into_transposed() -> Any:
    base = torch.zeros(2, 6, dtype=torch.int64)
    out = base[:, ::3].t()
    torch.nonzero(torch.tensor(NUMBERS).view(2, 2) > 1, out=out)
    return base, out


def found_into_fewer() -> Any:
    out = torch.zeros(3, dtype=torch.int64)
    view = out[:]
    torch.nonzero(torch.tensor(NUMBERS) > 1, out=out)
    return out, view


def found_into_more() -> Any:
    out = torch.zeros(1, dtype=torch.int64)
    torch.nonzero(torch.tensor(NUMBERS).view(2, 2) > 0, out=out)
    return out


def solved() -> Any:
    out = torch.zeros(1), torch.zeros(0), torch.zeros(2, dtype=torch.int64), torch.zeros(0)
    torch.linalg.lstsq(2 * torch.eye(5, 4), torch.arange(10.0).view(5, 2), out=out)
    return out


def solved_by_a_driver() -> Any:
    out = torch.zeros(4, 2), torch.zeros(0), torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    torch.linalg.lstsq(2 * torch.eye(4), torch.arange(8.0).view(4, 2), driver="gels", out=out)
    return out


PROGRAMS: list[Callable[[], Any]] = [
    selected_into_slice,
    selected_into_step,
    found_into_transposed,
    found_into_fewer,
    found_into_more,
    solved,
    solved_by_a_driver,
]


def described(result: Any) -> Any:
    tensors = result if isinstance(result, tuple) else (result,)
    return [(t.shape, t.stride(), t.dtype, t.tolist()) for t in tensors]


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_equals_eager(program: Callable[[], Any], mode: Any) -> None:
    expected = described(program())
    with mode():
        assert described(program()) == expected


def test_other_elements_of_an_unknown_storage_stay_unknown() -> None:
    with fake_mode():
        base, numbers = torch.randn(100), torch.tensor(NUMBERS)
        torch.masked_select(numbers, numbers > 1, out=base[:2])
        with pytest.raises(ValueError, match="needs the value"):
            base[:2].tolist()
