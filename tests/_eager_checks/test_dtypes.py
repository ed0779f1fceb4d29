"""Dtypes that eager refuses are refused of fakes, whatever was tried before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests._cache.conftest import unknown
from torchfake import deferred_mode, fake_mode
from torchfake._cache import cache
from torchfake._eager_checks import dtypes


@pytest.fixture(autouse=True)
def _nothing_tried() -> None:
    cache.clear()
    dtypes._num_trials.clear()


@pytest.mark.parametrize("known", [True, False])
def test_sizes_that_do_not_fit_use_no_trial_up(known: bool) -> None:
    def number(size: int, dtype: torch.dtype) -> torch.Tensor:
        made = torch.ones(size, size, dtype=dtype)
        return made if known else unknown(size, size, dtype=dtype)

    with fake_mode():
        for size in range(2, 12):
            with pytest.raises(RuntimeError, match=r"must match|broadcastable"):
                number(size, torch.int64).mul_(number(size + 1, torch.float64))
        with pytest.raises(RuntimeError, match="can't be cast"):
            number(5, torch.int64).mul_(number(5, torch.float64))


WRITES: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "fill_": lambda t, n: t.fill_(n),
    "full_like": torch.full_like,
    "new_full": lambda t, n: t.new_full((5,), n),
    "full": lambda t, n: torch.full(t.shape, n, dtype=t.dtype),
    "masked_fill": lambda t, n: t.masked_fill(t == 1, n),
    "masked_fill_": lambda t, n: t.masked_fill_(t == 1, n),
    "index_fill_": lambda t, n: t.index_fill_(0, torch.tensor([0]), n),
    "set_item": lambda t, n: t.__setitem__(0, n),
    "pad": lambda t, n: torch.nn.functional.pad(t, (1, 1), value=n),
}
NUMBERS = [0, -1, 3, 200, 300, 40_000, 70_000, 1 << 40, 1e3, 1e5, 1e39, 0.5, math.inf, 1 << 63]
NUMBERED = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8,
            torch.int16, torch.int32, torch.int64, torch.bool]  # fmt: skip


def refused(write: Callable[[torch.Tensor, Any], Any], tensor: torch.Tensor, number: Any) -> Any:
    try:
        write(tensor, number)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("dtype", NUMBERED, ids=str)
def test_numbers_that_a_dtype_cannot_hold(name: str, dtype: torch.dtype) -> None:
    for size in (7, 300):
        real = torch.ones(size, size, dtype=dtype)
        expected = [refused(WRITES[name], real.clone(), n) for n in NUMBERS]
        with fake_mode():
            fake = torch.ones(size, size, dtype=dtype)
            assert [refused(WRITES[name], fake.clone(), n) for n in NUMBERS] == expected


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("size", [(6,), (2, 3), (3, 2), (1, 2, 3)])
@pytest.mark.filterwarnings("ignore")
def test_masks_select_as_many_numbers_as_there_are(
    size: tuple[int, ...], mode: Callable[[], Any]
) -> None:
    def program(dtype: torch.dtype, of_mask: torch.dtype) -> list[Any]:
        written = torch.arange(6).view(size).to(dtype)
        mask = (written.abs() != 4).to(of_mask)
        written[mask] = torch.arange(5).to(dtype)
        written[mask] *= 3
        return [written.tolist(), written.index_put((mask,), -written[mask]).tolist()]

    for dtypes_of_call in itertools.product(
        (torch.int64, torch.float32, torch.complex64), (torch.bool, torch.uint8)
    ):
        expected = program(*dtypes_of_call)
        with mode():
            assert program(*dtypes_of_call) == expected
