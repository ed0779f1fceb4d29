"""What is refused because of where written elements lie: at once, from a full cache too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchfake import deferred_mode, fake_mode, materialize_tensor
from torchfake._eager_checks import overlaps


def row(*size: int) -> Tensor:
    """Memory of one element for all: uninitialized, so its value is unknown."""
    return torch.empty([1] * len(size)).expand(size)


def overlapping(length: int) -> tuple[Tensor, Tensor]:
    """Two slices of one tensor, an element apart."""
    line = torch.empty(length + 1)
    return line[1:], line[:-1]


def with_both(length: int, program: Callable[[Tensor, Tensor], Any]) -> Callable[[], Any]:
    return lambda: program(*overlapping(length))


def broadcast_into_itself() -> None:
    x = torch.empty(4)
    torch.add(torch.empty(3, 4), x, out=x)


def after_separate_arguments() -> None:
    """These have equal metadata, and are accepted."""
    target, source = overlapping(4)
    other = torch.empty(5)[1:]
    for _ in range(2):
        other.mul_(source)
    target.mul_(source)


REFUSED: dict[str, Callable[[], Any]] = {
    "add_": lambda: row(4, 4).add_(1),
    "add_ to many elements": lambda: row(4000, 4000).add_(5),
    "copy_": lambda: row(4, 4).copy_(torch.empty(4, 4)),
    "scatter_": lambda: row(4, 4).scatter_(0, torch.zeros(4, 4, dtype=torch.int64), 1),
    "normal_": lambda: row(4, 4).normal_(),
    "randn": lambda: torch.randn(4, 4, out=row(4, 4)),
    "addmm_": lambda: row(400, 400).addmm_(torch.empty(400, 400), torch.empty(400, 400)),
    "orthogonal_": lambda: nn.init.orthogonal_(row(4, 4)),
    "foreach": lambda: torch._foreach_add_([torch.empty(3), row(4, 4)], 1.0),
    "exp": with_both(4, lambda a, b: torch.exp(b, out=a)),
    "cat": with_both(4, lambda a, b: torch.cat([b[:2], b[2:]], out=a)),
    "sub_ of many elements": with_both(100_000, lambda a, b: a.sub_(b)),
    "an index": with_both(4, lambda a, b: torch.index_select(b, 0, torch.arange(4), out=a)),
    "after separate arguments": after_separate_arguments,
    "broadcast into itself": broadcast_into_itself,
    "atan2_ with a larger one": lambda: torch.empty(5, 1).atan2_(torch.empty(5, 10)),
    "fmod_ with a larger one": lambda: torch.empty(4).fmod_(torch.empty(5, 4)),
}

ACCEPTED: dict[str, Callable[[], Any]] = {
    "fill_": lambda: row(4, 4).fill_(1),
    "fill_ of many elements": lambda: row(4000, 4000).fill_(5),
    "masked_fill_": lambda: row(4, 4).masked_fill_(torch.ones(4, 4, dtype=torch.bool), 1),
    "windows": lambda: torch.empty(7).as_strided((4, 4), (1, 1)).add_(1),
    "itself": lambda: (lambda x: x.add_(x))(torch.empty(4)),
    "the same elements": lambda: (lambda x: x.add_(x.view(4)))(torch.empty(4)),
    "no elements": lambda: torch.empty(1, 0).expand(4, 0).add_(1),
    "other elements": lambda: (lambda x: x[:4].add_(x[4:]))(torch.empty(8)),
    "gaps": lambda: (lambda x: x[::2].add_(x[1::2]))(torch.empty(8)),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_once(name: str, mode: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    with pytest.raises(RuntimeError) as expected:
        REFUSED[name]()
    state = torch.get_rng_state()
    for _ in range(2):
        torch.manual_seed(0)
        with mode(), pytest.raises(RuntimeError) as error:
            REFUSED[name]()
        assert str(error.value) == str(expected.value)
        if mode is deferred_mode:
            assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_as_in_eager(name: str, mode: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager does not like some of them either
        ACCEPTED[name]()
        for _ in range(2):
            with mode():
                ACCEPTED[name]()


def test_on_fake_cuda() -> None:
    with fake_mode(fake_cuda=True), pytest.raises(RuntimeError, match="single memory location"):
        torch.empty(1, device="cuda").expand(4).mul_(2)


def test_a_fallback_behind_it() -> None:
    """What eager refuses leaves the record as it was, and what follows has eager's bits."""

    def program() -> Tensor:
        weight = torch.empty(1, 4).normal_().expand(4, 4)
        try:
            nn.init.orthogonal_(weight)
        except RuntimeError:
            weight = weight.clone()
        return nn.init.orthogonal_(weight)

    torch.manual_seed(0)
    expected = program()
    torch.manual_seed(0)
    with deferred_mode():
        made = program()
    assert torch.equal(materialize_tensor(made), expected)


def test_pivots_of_trials_count_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK trusts them: a 0 reads outside of the matrix, and ended the process on torch 2.12."""
    pivots: list[Tensor] = []
    run_small = overlaps.run_small
    monkeypatch.setattr(
        overlaps, "run_small", lambda f, args, kw: (pivots.append(args[1]), run_small(f, args, kw))
    )
    with fake_mode():
        right = torch.empty(3, 1)
        ones = torch.empty(3, dtype=torch.int32)
        torch.linalg.ldl_solve(torch.empty(3, 3), ones, right, out=right)
    assert pivots
    assert all(p.min() == 1 for p in pivots)


def once(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(1, dtype=dtype).expand(5)


REFUSED_DRAWS: dict[str, Callable[[], Any]] = {
    "normal_": lambda: once().normal_(),
    "random_": lambda: once().random_(),
    "exponential_": lambda: once().exponential_(),
    "bernoulli_": lambda: once().bernoulli_(0.5),
    "bernoulli_ of a tensor": lambda: once().bernoulli_(torch.full((5,), 0.5)),
    "rand out": lambda: torch.rand(5, out=once()),
    "randint out": lambda: torch.randint(3, (5,), out=once(torch.int64)),
}


@pytest.mark.parametrize("name", REFUSED_DRAWS)
def test_a_refused_draw_moves_the_generator_as_in_eager(name: str) -> None:
    def numbers() -> list[float]:
        torch.manual_seed(1)
        with pytest.raises(RuntimeError, match="single memory location"):
            REFUSED_DRAWS[name]()
        return torch.rand(2).tolist()

    expected = numbers()
    for mode in (fake_mode, deferred_mode):
        with mode():
            assert numbers() == expected
