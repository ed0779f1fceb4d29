"""Shared by the tests of the cache: an empty cache, fakes with unknown values, and a check that no
kernel runs.

The tests run programs several times, so that all runs but the first are hits, and compare each run
with eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import describe
from torchfake import FakeTensor, _dispatch, fake_mode
from torchfake._cache import cache

Program = Callable[[], Any]


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def unknown(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A fake with an unknown value if a mode is on, else a real tensor of ones."""
    made = torch.empty(size, dtype=dtype)
    if isinstance(made, FakeTensor):
        made._fake_storage.value = None
        return made
    return made.fill_(1)


def assert_same_again(program: Program, times: int = 3) -> None:
    """Check that each run of `program` in a fake mode returns the results of eager."""
    expected = describe(program())
    for _ in range(times):
        with fake_mode():
            assert describe(program()) == expected


class KernelRanError(Exception):
    """Raised when an operation is a miss."""


@pytest.fixture
def forbid_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after whose call a miss raises. Checks are off, since a checked hit is run."""
    monkeypatch.setattr(cache.settings, "checking", False)

    def refuse(func: Any, args: Any, kwargs: Any) -> Any:
        raise KernelRanError(str(func))

    return lambda: monkeypatch.setattr(_dispatch, "_run", refuse)
