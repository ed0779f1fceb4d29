"""Known draws are eager's, and the global generator does not move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from tests.conftest import generators_stand_still
from torchfake import fake_mode

DRAWS: dict[str, Callable[[], Any]] = {
    "rand": lambda: torch.rand(3),
    "rand_number": lambda: torch.rand([]).item(),
    "randn": lambda: torch.randn(2, 2).normal_(),
    "randint": lambda: torch.randint(9, (3,)).tolist(),
    "randperm": lambda: torch.randperm(5).tolist(),
    "bernoulli": lambda: torch.bernoulli(torch.tensor(0.5)).item(),
    "multinomial": lambda: torch.multinomial(torch.ones(4), 2).tolist(),
    "random_": lambda: torch.zeros(3, dtype=torch.int64).random_(9).tolist(),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(5)),
    "init": lambda: torch.nn.Linear(3, 3),
    "trunc_normal": lambda: torch.nn.init.trunc_normal_(torch.empty(3, 3)),
    "rrelu": lambda: torch.nn.functional.rrelu(torch.ones(3), training=True),
    "poisson": lambda: torch.poisson(torch.ones(3)),
    "likes": lambda: [torch.rand_like(torch.ones(2)), torch.randint_like(torch.ones(2), 3)],
    "distribution": lambda: torch.distributions.Categorical(torch.ones(3)).sample().item(),
    "exponential": lambda: torch.ones(3).exponential_(),
    "fork_rng": lambda: torch.random.fork_rng(devices=[]).__enter__(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_global_generator_does_not_move(name: str) -> None:
    with generators_stand_still(), fake_mode():
        DRAWS[name]()
        DRAWS[name]()


@pytest.mark.parametrize("name", ["rand_number", "randint", "randperm", "random_", "multinomial"])
def test_known_draws_equal_eagers(name: str) -> None:
    torch.manual_seed(5)
    expected = [DRAWS[name](), DRAWS[name]()]
    torch.manual_seed(5)
    with fake_mode():
        assert [DRAWS[name](), DRAWS[name]()] == expected


def test_generators_that_are_passed_do_move() -> None:
    generator = torch.Generator().manual_seed(3)
    expected = torch.randint(99, (4,), generator=generator).tolist()
    moved = generator.get_state()
    generator.manual_seed(3)
    with fake_mode():
        torch.randn(5, generator=generator)  # not known, so not drawn
        assert torch.randint(99, (4,), generator=generator).tolist() == expected
    assert torch.equal(generator.get_state(), moved)


def test_layer_drop() -> None:
    def survivors() -> list[int]:
        torch.manual_seed(0)
        return [i for i in range(20) if torch.rand([]) < 0.5]

    expected = survivors()
    with fake_mode():
        assert survivors() == expected


def test_samplers() -> None:
    def program() -> list[Any]:
        torch.manual_seed(1)
        order = list(RandomSampler(range(7)))
        batches = list(BatchSampler(RandomSampler(range(5), replacement=True), 2, False))
        data = TensorDataset(torch.arange(6))
        rows = [batch[0].tolist() for batch in DataLoader(data, batch_size=4, shuffle=True)]
        return [order, batches, rows]

    expected = program()
    with fake_mode():
        result = program()
    assert result == expected


def test_reseeding_rewinds_known_draws():
    def program():
        torch.manual_seed(0)
        first = torch.randint(100, (3,)).tolist()
        state = torch.get_rng_state()
        second = torch.randint(100, (3,)).tolist()
        torch.manual_seed(0)
        return first, second, torch.randint(100, (3,)).tolist(), len(state)

    expected = program()
    with fake_mode():
        assert program() == expected


def test_draws_continue_after_the_mode():
    with fake_mode():
        x = torch.zeros(3, dtype=torch.int64)
    draws = {tuple(torch.randint_like(x, 0, 1000).tolist()) for _ in range(4)}
    assert len(draws) == 4
