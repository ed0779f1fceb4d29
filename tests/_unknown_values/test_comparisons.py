"""Comparisons with infinity, NaN and with itself ask whether numbers are finite, as isinf does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchfake import fake_mode
from torchfake.errors import UnknownValueError

_QUESTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "equal to infinity": lambda x: (x == math.inf).any(),
    "equal to minus infinity": lambda x: (x == -math.inf).any(),
    "by its absolute value": lambda x: (x.abs() == math.inf).any(),
    "unequal": lambda x: (x.abs() != math.inf).all(),
    "not itself": lambda x: (x != x).any(),
    "itself": lambda x: (x == x).all(),
    "itself, detached": lambda x: (x == x.detach()).all(),
    "less": lambda x: (x < math.inf).all(),
    "at most": lambda x: (x <= -math.inf).any(),
    "greater": lambda x: (x.abs() > math.inf).any(),
    "at least": lambda x: (x >= -math.inf).all(),
    "equal to NaN": lambda x: (x == math.nan).any(),
    "equal to a tensor": lambda x: (x == torch.tensor(math.inf)).any(),
    "either": lambda x: ((x == math.inf) | (x != x)).any(),
    "the largest one": lambda x: x.abs().max() == math.inf,
    "the sum": lambda x: x.sum() != x.sum() + math.inf,
}


@pytest.mark.parametrize("name", sorted(set(_QUESTIONS) - {"the sum"}))
def test_unknown_numbers_are_assumed_to_be_finite(name: str) -> None:
    expected = bool(_QUESTIONS[name](torch.randn(300, 300)))
    for _ in range(3):  # from the cache, and by a rule
        with fake_mode() as mode:
            assert bool(_QUESTIONS[name](torch.randn(300, 300))) is expected
        assert len(mode.answers) == 1


@pytest.mark.parametrize("name", _QUESTIONS)
def test_numbers_that_may_be_infinite_are_not(name: str) -> None:
    with fake_mode():
        hidden = torch.randn(300, 300).masked_fill(torch.randn(300, 300) > 0, -math.inf)
        with pytest.raises(UnknownValueError):
            bool(_QUESTIONS[name](hidden))


@pytest.mark.parametrize("times", [1, 300])
def test_two_tensors_are_not_one(times: int) -> None:
    """Whichever is compared first: the cache keeps them apart."""
    with fake_mode():
        one, other = torch.randn(300, 300), torch.randn(300, 300)
        for _ in range(times):
            assert bool((one == one).all())
            with pytest.raises(UnknownValueError):
                bool((one == other).all())
            assert not bool((other != other).any())
            with pytest.raises(UnknownValueError):
                bool((one[0] == one[1]).all())


def test_an_ordinary_number_is_compared_with_the_value() -> None:
    with fake_mode():
        x = torch.randn(300, 300)
        for number in (0.0, 1e30, 3):
            with pytest.raises(UnknownValueError):
                bool((x == number).any())
        with pytest.raises(UnknownValueError):
            x[x == math.inf]


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bfloat16])
def test_other_dtypes(dtype: Any) -> None:
    real = torch.ones(2, 2).to(dtype)
    expected = bool((real == math.inf).any()), bool((real != real).any())
    with fake_mode():
        x = torch.randn(600, 600).to(dtype)
        assert (bool((x == math.inf).any()), bool((x != x).any())) == expected
