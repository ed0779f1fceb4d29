"""Near the recursion limit an operator runs, or raises RecursionError; nothing wrong is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode
from torchfake._cache import cache


def _deep(program: Callable[[], Any], depth: int) -> Any:
    return program() if depth == 0 else _deep(program, depth - 1)


_PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "factory": lambda x: torch.ones(3),
    "sum of two": lambda x: x + 1,
    "index": lambda x: x[torch.tensor([0])],
    "two indices": lambda x: x.expand(3, 3)[torch.tensor([0, 1]), torch.tensor([1])],
    "draw": lambda x: torch.randn(70),
    "conversion": lambda x: x.to(torch.float64),
    "layer": lambda x: torch.nn.Linear(3, 4)(x),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_it_runs_or_raises_recursion_error(name: str, mode: Any) -> None:
    program = _PROGRAMS[name]
    limit = sys.getrecursionlimit()
    with mode():
        x = torch.ones(3)
        program(x)  # what is imported at the first use is there
        for depth in range(limit - 300, limit, 7):
            cache.clear()
            try:
                _deep(lambda: program(x), depth)
            except RecursionError:
                continue
        program(x)


def test_an_error_while_one_is_handled_is_not_replaced() -> None:
    with fake_mode():
        x = torch.ones(3)
        try:
            raise RecursionError
        except RecursionError:
            with pytest.raises(RuntimeError, match="must match the size") as refused:
                x + torch.ones(4)
    assert not isinstance(refused.value, RecursionError)
