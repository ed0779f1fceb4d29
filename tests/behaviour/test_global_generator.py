"""The global generator never moves; known draws and seeds are eager's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.conftest import generators_stand_still
from torchfake import fake_mode


def draws() -> Any:
    torch.rand(3), torch.randn(100), torch.randint(9, (4,)), torch.randperm(7)
    torch.empty(50).normal_().uniform_().exponential_().bernoulli_()
    F.dropout(torch.ones(10), 0.5)
    nn.Linear(3, 3), nn.init.trunc_normal_(torch.empty(5)), torch.multinomial(torch.ones(4), 2)
    torch.distributions.Normal(0.0, 1.0).sample((3,))
    return torch.rand(())


def test_the_global_generator_never_moves() -> None:
    """Neither draws inside a mode move it, nor draws of fakes outside."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with generators_stand_still(), fake_mode():
        draws()
        fake = torch.ones(40)
    with generators_stand_still():
        fake.normal_().bernoulli_()
        F.dropout(fake, 0.5)
        torch.rand_like(fake)
    assert torch.equal(torch.rand(3), expected)


def known_draws() -> list[Any]:
    several = [torch.randint(1000, (5,)), torch.rand(()), torch.randperm(6), torch.randint(9, ())]
    return [draw.tolist() for draw in several]


def test_seeding_inside() -> None:
    """``manual_seed`` takes effect, also after the mode; known draws after it are eager's."""
    torch.manual_seed(11)
    expected = known_draws()
    with fake_mode():
        torch.manual_seed(11)
        assert known_draws() == expected
    assert torch.initial_seed() == 11


def test_a_generator_that_is_passed_moves() -> None:
    """Known draws are drawn from a generator that is passed as ``generator=``."""
    mine = torch.Generator().manual_seed(1)
    expected = torch.randperm(8, generator=mine).tolist()
    mine.manual_seed(1)
    with generators_stand_still(), fake_mode():
        assert torch.randperm(8, generator=mine).tolist() == expected
