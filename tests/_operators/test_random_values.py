"""Known draws are eager's, and the global generator does not move."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import VonMises
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from tests.conftest import generators_stand_still, unknown
from torchfake import fake_mode
from torchfake.errors import UnknownValueError

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
    def program(generator: torch.Generator) -> list[int]:
        torch.randn(65, generator=generator)  # has no values, and takes its place
        return torch.randint(99, (4,), generator=generator).tolist()

    eager, ours = (torch.Generator().manual_seed(3) for _ in range(2))
    expected = program(eager)
    with fake_mode():
        assert program(ours) == expected
    assert torch.equal(eager.get_state(), ours.get_state())


FILLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "uniform": lambda t: t.uniform_(-1, 2),
    "normal": lambda t: t.normal_(1, 0.5),
    "exponential": lambda t: t.exponential_(2),
    "bernoulli": lambda t: t.bernoulli_(0.3),
    "geometric": lambda t: t.geometric_(0.3),
    "cauchy": lambda t: t.cauchy_(),
    "log_normal": lambda t: t.log_normal_(),
    "random": lambda t: t.random_(5),
    "part": lambda t: t[:3].normal_(),
    "column": lambda t: t.unsqueeze(1).expand(-1, 1).t().uniform_(),
    "trunc_normal": torch.nn.init.trunc_normal_,
    "like": lambda t: [torch.rand_like(t), torch.randn_like(t.double())],
    "from_values": lambda t: torch.normal(torch.arange(5.0), torch.ones(5)),
    "poisson": lambda t: torch.poisson(torch.ones(4)),
    "integers": lambda t: torch.randint(9, (3,)),
    "distribution": lambda t: torch.distributions.Gamma(torch.ones(3), 2.0).sample(),
}


def _small_draws(order: random.Random, dtype: torch.dtype) -> list[Any]:
    """Small draws in some order, read in another."""
    names = order.choices(sorted(FILLS), k=8)
    tensors = [torch.zeros(n, dtype=dtype) for n in order.choices([1, 7, 16, 17, 64], k=8)]
    drawn = [FILLS[name](t) for name, t in zip(names, tensors, strict=True)]
    results = [*tensors, *(d for d in drawn if isinstance(d, torch.Tensor))]
    values = {i: results[i].tolist() for i in order.sample(range(len(results)), len(results))}
    return [names, *(values[i] for i in range(len(results)))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_small_draws_equal_eagers_in_the_order_of_the_program(dtype: torch.dtype) -> None:
    for seed in range(12):
        torch.manual_seed(seed)
        expected = _small_draws(random.Random(seed), dtype)
        torch.manual_seed(seed)
        with generators_stand_still(), fake_mode():
            assert _small_draws(random.Random(seed), dtype) == expected


def test_small_draws_move_a_generator_that_is_passed_as_eager_does() -> None:
    for size in (1, 16, 64):
        eager, ours = (torch.Generator().manual_seed(3) for _ in range(2))
        expected = torch.randn(size, generator=eager), torch.poisson(torch.ones(3), generator=eager)
        with fake_mode():
            drawn = torch.randn(size, generator=ours), torch.poisson(torch.ones(3), generator=ours)
            assert [d.tolist() for d in drawn] == [e.tolist() for e in expected]
        assert torch.equal(eager.get_state(), ours.get_state())


def test_a_draw_into_a_part_of_unknown_memory_takes_its_place_in_the_sequence() -> None:
    def program(table: torch.Tensor) -> list[float]:
        torch.manual_seed(1)
        table[0].uniform_()
        return torch.rand(2).tolist()

    expected = program(torch.zeros(2, 3))
    with fake_mode():
        assert program(unknown(2, 3)) == expected


def test_more_floats_than_64_have_no_values() -> None:
    with fake_mode():
        torch.randn(64).tolist()
        with pytest.raises(UnknownValueError):
            torch.randn(65).tolist()


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_rejection_samplers_that_raise_count_what_they_drew(dtype: torch.dtype) -> None:
    def state() -> list[int]:
        torch.manual_seed(0)
        with pytest.raises((ZeroDivisionError, NotImplementedError)):
            torch.nn.init.trunc_normal_(torch.empty(100, dtype=dtype), 1.0, 0.0)
        torch.rand(3)
        return torch.get_rng_state().tolist()

    expected = state()
    with fake_mode():
        assert state() == expected


def test_normal_numbers_of_a_size_are_drawn_when_they_are_read() -> None:
    def run() -> list[Any]:
        torch.manual_seed(3)
        drawn = [
            torch.normal(0.0, 0.1, (64,)),
            torch.normal(1.0, 2.0, (3, 4), dtype=torch.float64),
            torch.normal(2.0, 1.0, (), generator=torch.Generator().manual_seed(5)),
            torch.normal(torch.zeros(3), 1.0),
            torch.normal(0.0, torch.ones(3)),
        ]
        torch.normal(0.0, 1.0, (65,))
        after = torch.rand(2)
        return [after.tolist(), [t.tolist() for t in drawn], torch.get_rng_state().tolist()]

    expected = run()
    with fake_mode():
        assert run() == expected
        drawn: Any = torch.normal(0.0, 0.1, (64,))
        assert drawn._fake_storage.value.value is None
        with pytest.raises(RuntimeError, match="std >= 0"):
            torch.normal(0.0, -1.0, (3,))


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda: torch.poisson(torch.randn(1000).abs()), "aten.poisson.default"),
        (lambda: torch.nn.init.trunc_normal_(torch.empty(5000, 5000)), "trunc_normal_"),
        (lambda: VonMises(torch.zeros(40), torch.ones(40)).sample(), "VonMises.sample"),
    ],
)
def test_numbers_that_differ_from_eagers_are_read_with_a_warning(draw: Any, name: str) -> None:
    """Where a value or a state is read: before that, the draw itself is of no account."""
    with fake_mode():
        draw()
        with pytest.warns(
            UserWarning, match=f"differ from eager's: {name} at .*test_random_values"
        ):
            torch.get_rng_state()
        torch.rand(2).tolist()  # once
        draw()
        torch.manual_seed(0)
        torch.rand(2).tolist()


def test_known_von_mises_draws_are_eagers() -> None:
    def run() -> list[float]:
        torch.manual_seed(0)
        VonMises(torch.zeros(2), torch.ones(2)).sample()
        return [torch.rand(1).item(), *torch.get_rng_state().tolist()]

    expected = run()
    with fake_mode():
        assert run() == expected
