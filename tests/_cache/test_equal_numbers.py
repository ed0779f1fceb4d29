"""Equal numbers that differ in type, sign or NaN bits have separate outcomes, in any order."""

from __future__ import annotations

import enum
import functools
import itertools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.oracle import bits
from torchfake import deferred_mode, fake_mode, materialize_tensor
from torchfake._cache import cache
from torchfake._tensor import known_values


class Whole(int):
    pass


class Real(float):
    pass


class Level(enum.IntEnum):
    NONE, ONE = 0, 1


def nan(bits_: int) -> float:
    return float(struct.unpack("d", struct.pack("Q", bits_))[0])


ZEROS = [0, False, 0.0, -0.0, 0j, complex(-0.0, 0.0), complex(0.0, -0.0), complex(-0.0, -0.0),
         Whole(0), Real(-0.0), Level.NONE, np.float32(-0.0), np.float64(-0.0), np.int64(0),
         np.bool_(False)]  # fmt: skip
ONES = [1, True, 1.0, 1 + 0j, complex(1, -0.0), Whole(1), Real(1), Level.ONE, np.float32(1),
        np.int8(1), np.bool_(True)]  # fmt: skip
IMAGINARY = [complex(0.0, 1), complex(-0.0, 1)]
NANS = [nan(0x7FF8 << 48), nan(0xFFF8 << 48), nan(0x7FFA << 48), complex(nan(0xFFF8 << 48), 0.0)]
DTYPES = (torch.float32, torch.complex64, torch.bool)

PROGRAMS: dict[str, Callable[[Any, torch.dtype], torch.Tensor]] = {
    "full": lambda n, dtype: torch.full((3,), n),
    "full-dtype": lambda n, dtype: torch.full((3,), n, dtype=dtype),
    "fill_": lambda n, dtype: torch.zeros(3, dtype=dtype).fill_(n),
    "new_full": lambda n, dtype: torch.zeros(3, dtype=dtype).new_full((2,), n),
    "mul": lambda n, dtype: torch.ones(3, dtype=dtype) * n,
    "add": lambda n, dtype: torch.zeros(3, dtype=dtype).add(n),
    "where": lambda n, dtype: torch.where(
        torch.tensor([True, False]), n, torch.ones((), dtype=dtype)
    ),
    "tensor": lambda n, dtype: torch.tensor([n, n]),
    "foreach": lambda n, dtype: torch._foreach_add([torch.ones(2, dtype=dtype)], [n])[0],
}


def outcome(program: Callable[[], torch.Tensor], mode: Any = None) -> Any:
    """The dtype and bytes of the result of a program, or the type of its error."""
    try:
        if mode is None:
            result = program()
        else:
            with mode():
                result = program()
            is_fake_mode = mode is fake_mode
            result = known_values.read_value(result, "a test") if is_fake_mode else result
            result = result if is_fake_mode else materialize_tensor(result)
    except Exception as error:
        return type(error)
    return result.dtype, bits(result)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_equal_numbers_have_outcomes_of_their_own(name, mode):
    wrong = []
    for group, dtype in itertools.product((ZEROS, ONES, IMAGINARY, NANS), DTYPES):
        calls = [functools.partial(PROGRAMS[name], n, dtype) for n in group]
        expected = [(call, outcome(call)) for call in calls]
        for order in (1, -1):
            cache.clear()
            for call, known in expected[::order] * 2:
                if outcome(call, mode) != known:
                    wrong.append((type(call.args[0]).__name__, *call.args, order))
    assert not wrong
