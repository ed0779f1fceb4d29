"""Known values written in place: a hit leaves them to be computed when they are read, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests._cache.conftest import unknown
from torchfake import FakeTensor, _dispatch, deferred_mode, fake_mode, materialize_tensor
from torchfake._cache import cache

WRITES: list[Callable[[Tensor, Tensor], Any]] = [
    lambda a, b: a.copy_(b),
    lambda a, b: a.add_(b),
    lambda a, b: a.mul_(2.5),
    lambda a, b: a.sub_(b, alpha=2),
    lambda a, b: a.add_(1),
    lambda a, b: a.zero_(),
    lambda a, b: a.fill_(-0.0),
    lambda a, b: a.fill_(0.0),
    lambda a, b: a.clamp_(-3, 3),
    lambda a, b: a[1:3].mul_(3),
    lambda a, b: a[:2].copy_(b[2:]),
    lambda a, b: a[1:].copy_(a[:1]),
    lambda a, b: a[0:2].copy_(a[0:2]),
    lambda a, b: a.detach().neg_(),
]


def _started(chance: random.Random) -> Tensor:
    kind = chance.randrange(4)
    if kind == 0:
        return torch.arange(4.0)
    if kind == 1:
        return torch.full((4,), -0.0)
    made = unknown(4) if kind == 2 else unknown(8)[2:6]
    return made if isinstance(made, FakeTensor) else made.fill_(float("nan"))


def _program(seed: int) -> tuple[list[Tensor], list[int]]:
    """Some tensors, and how often the first three were written."""
    chance = random.Random(seed)
    made = [_started(chance) for _ in range(3)]
    before = [tensor._version for tensor in made]
    for _ in range(12):
        write = chance.choice(WRITES)
        write(*chance.sample(made, 2))
        if chance.random() < 0.2:
            made.append(chance.choice(made).clone())
    return made, [t._version - start for t, start in zip(made, before, strict=False)]


@pytest.mark.parametrize("seed", range(30))
def test_what_is_known_equals_eager(seed: int) -> None:
    expected, num_writes = _program(seed)
    for _ in range(3):
        with fake_mode():
            made, num_fake_writes = _program(seed)
        assert num_fake_writes == num_writes
        for fake, real in zip(made, expected, strict=True):
            assert isinstance(fake, FakeTensor)
            if fake._fake_storage.is_known:
                signs = torch.tensor(fake.tolist()).signbit().tolist()
                assert (fake.tolist(), signs) == (real.tolist(), real.signbit().tolist())


def test_a_storage_that_has_grown_is_not_known() -> None:
    for _ in range(3):
        with fake_mode():
            grown = torch.arange(4.0).resize_(40).add_(1)
            assert not grown._fake_storage.is_known  # type: ignore[attr-defined]


def test_writes_of_a_deferred_mode_are_recorded() -> None:
    def program() -> Tensor:
        return torch.arange(4.0).add_(1).copy_(torch.full((4,), 0.0)).sub_(2)

    for _ in range(3):
        with fake_mode():
            program()
        with deferred_mode():
            deferred = program()
        assert materialize_tensor(deferred).tolist() == program().tolist()


@pytest.mark.skipif(cache.settings.checking, reason="there are no hits")
def test_hits_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> None:
        torch.ones(4).fill_(0.0), unknown(4).fill_(-0.0), torch.zeros(4).zero_()
        torch.empty(4).copy_(torch.arange(4.0)).add_(1).mul_(torch.ones(4))

    def refuse(*_: Any) -> None:
        raise AssertionError("no short way")

    with fake_mode():
        for _ in range(3):
            program()
        monkeypatch.setattr(_dispatch, "_slow_path", refuse)
        program()
