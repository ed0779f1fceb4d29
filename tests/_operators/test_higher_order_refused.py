"""What eager refuses of functions in cond, while_loop, scan and map is refused for fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import UncapturedHigherOrderOpError
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan, while_loop

from torchfake import fake_like, fake_mode


def ones() -> Tensor:
    return torch.ones(3)


def branch(function: Callable[..., Any]) -> Any:
    return torch.cond(torch.tensor(True), function, lambda t: t - 1, (ones(),))


def loop(body: Callable[..., Any]) -> Any:
    return while_loop(lambda i, t: i < 2, body, (torch.tensor(0), ones()))


def scanned(function: Callable[..., Any]) -> Any:
    return scan(function, torch.zeros(3), torch.ones(4, 3))


REFUSED: dict[str, Callable[[], Any]] = {
    "cond gives its operand": lambda: branch(lambda t: t),
    "cond gives a view": lambda: branch(lambda t: t.view(3)),
    "cond writes": lambda: branch(lambda t: t.add_(1) + 0),
    "while_loop hands on": lambda: loop(lambda i, t: (i + 1, t)),
    "while_loop writes": lambda: loop(lambda i, t: (i + 1, t.add_(1) + 0)),
    "while_loop grows": lambda: loop(lambda i, t: (i + 1, torch.cat([t, t]))),
    "while_loop promotes": lambda: loop(lambda i, t: (i + 1, t.double())),
    "while_loop loses": lambda: loop(lambda i, t: (i + 1,)),
    "scan gives its carry": lambda: scanned(lambda c, y: (c, c * y)),
    "scan gives its row": lambda: scanned(lambda c, y: (c + y, y)),
    "scan gives one tensor twice": lambda: scanned(lambda c, y: (c.add(y),) * 2),
    "scan writes": lambda: scanned(lambda c, y: (c.add_(y) + 0, c * y)),
    "scan promotes": lambda: scanned(lambda c, y: ((c + y).double(), c * y)),
    "scan gives one value": lambda: scanned(lambda c, y: c + y),
    "map gives its row": lambda: map_rows(lambda row: row, torch.ones(4, 3)),
    "map writes": lambda: map_rows(lambda row: row.add_(1) + 0, torch.ones(4, 3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_eager_refuses(name: str) -> None:
    with fake_mode(), pytest.raises(UncapturedHigherOrderOpError):
        REFUSED[name]()


def test_a_program_that_eager_refuses_is_one() -> None:
    with pytest.raises(UncapturedHigherOrderOpError):
        REFUSED["scan gives its row"]()


def test_what_scan_stacks_is_known_and_fake_outside_a_mode() -> None:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return carry + row, carry * row

    rows = torch.arange(12.0).view(4, 3)
    expected_carry, expected = scan(step, torch.zeros(3), rows, reverse=True)
    with fake_mode():
        carry, stacked = scan(step, torch.zeros(3), torch.arange(12.0).view(4, 3), reverse=True)
        assert (carry.tolist(), stacked.tolist()) == (expected_carry.tolist(), expected.tolist())
        assert stacked.stride() == expected.stride()
    _, stacked = scan(step, fake_like(torch.zeros(3)), fake_like(rows))
    assert stacked.shape == (4, 3)
