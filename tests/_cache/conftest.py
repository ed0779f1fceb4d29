"""What the tests of the cache share: an empty cache, fakes of unknown value, and a check that no
kernel runs.

Input: programs that run several times, so that all but the first run are hits. The oracle is eager,
as everywhere.
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
    """In a mode, a fake of unknown value; outside, a real tensor."""
    made = torch.empty(size, dtype=dtype)
    if isinstance(made, FakeTensor):
        made._fake_storage.value = None
        return made
    return made.fill_(1)


def assert_same_again(program: Program, times: int = 3) -> None:
    """`program` gives what it gives in eager, each time."""
    expected = describe(program())
    for _ in range(times):
        with fake_mode():
            assert describe(program()) == expected


class KernelRanError(Exception):
    """An operation did not come from the cache."""


@pytest.fixture
def forbid_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and every operation must be a hit from then on. A checked hit runs its kernel."""
    monkeypatch.setattr(cache.settings, "checking", False)

    def refuse(func: Any, args: Any, kwargs: Any) -> Any:
        raise KernelRanError(str(func))

    return lambda: monkeypatch.setattr(_dispatch, "_run", refuse)
