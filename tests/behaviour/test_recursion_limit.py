"""Near the recursion limit a call ends as it does in eager mode, or with RecursionError."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_init, fake_mode, is_fake, materialize_module

DEPTHS = range(60)


def _materialize() -> Any:
    return materialize_module(deferred_init(nn.Linear, 3, 4)).weight.shape


def _materialize_drawn_again() -> Any:
    return materialize_module(
        deferred_init(lambda: nn.ParameterList([nn.init.trunc_normal_(torch.empty(3, 4))]))
    )[0].shape


def _in_a_mode() -> Any:
    with fake_mode():
        return (nn.Linear(3, 4)(torch.randn(2, 3)) + 1).shape


def _at_depth(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else _at_depth(depth - 1, call)


def _depth_here() -> int:
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return depth


@pytest.mark.parametrize("program", [_materialize, _materialize_drawn_again, _in_a_mode])
def test_recursion_errors_stay_what_they_are(program: Callable[[], Any]) -> None:
    expected = program()
    deepest = sys.getrecursionlimit() - _depth_here()
    for depth in DEPTHS:
        try:
            assert _at_depth(deepest - depth, program) == expected
        except RecursionError:
            continue
    assert program() == expected
    assert not is_fake(torch.randn(2))
