"""Calls with new sizes have the results of eager, also if their recipe is derived from others."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torchfake import deferred_init, fake_mode, materialize_module
from torchfake._cache import cache, other_sizes

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
NUMBERS = [0, 0.0, -0.0, 1, 1.0, True, -2.5, 0.3, 1e3, 1e5, 1e39, float("inf"), float("nan")]


@pytest.fixture(autouse=True)
def _nothing_learned() -> None:
    cache.clear()


def _size(chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.choice((0, 1, 2, 9, 33, 64, 130)) for _ in range(chance.randrange(4)))


def _made(chance: random.Random) -> torch.Tensor:
    """A tensor made by a random factory, a view of a tensor, or the result of an operator."""
    size, dtype = _size(chance), chance.choice([None, None, *DTYPES])
    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    if chance.random() < 0.3:
        options["device"] = "cpu"
    kind = chance.choice(("empty", "zeros", "ones", "full", "view", "tripled"))
    if kind == "full":
        return torch.full(size, chance.choice(NUMBERS), **options)
    if kind == "view":
        return torch.ones(3, *size, **options)[1]
    if kind == "tripled":
        return torch.ones(size, **options) * 3
    return getattr(torch, kind)(size, **options)  # type: ignore[no-any-return]


def _filled(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    numbers = [chance.choice(NUMBERS) for _ in range(chance.randrange(3))]
    kind = chance.choice(("uniform_", "normal_", "fill_", "zero_", "detach"))
    if kind == "detach":
        return tensor.detach()
    if kind == "zero_":
        return tensor.zero_()
    if kind == "fill_":
        return tensor.fill_(chance.choice(NUMBERS))
    return getattr(tensor, kind)(*numbers)  # type: ignore[no-any-return]


def _outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        return type(error)


def _seen(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
    return *place, tensor.untyped_storage().nbytes(), tensor._version


def _program(seed: int, see: Callable[[Any], Any]) -> list[Any]:
    """Make and fill random tensors; return what `see` returns of each, and the random state."""
    chance, found = random.Random(seed), []
    torch.manual_seed(seed)
    for _ in range(300):
        tensor: Any = _outcome(functools.partial(_made, chance))
        found.append(see(tensor))
        for _ in range(chance.randrange(3)):
            if isinstance(tensor, torch.Tensor):
                found.append(see(_outcome(functools.partial(_filled, tensor, chance))))
    return [*found, torch.get_rng_state().tolist()]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("checking", [False, True])
def test_programs(seed: int, checking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", checking)
    eager = _program(seed, _seen)
    with fake_mode():
        assert _program(seed, _seen) == eager


def _value(tensor: Any) -> Any:
    """The bytes of a tensor, or None if they are unknown to torchfake or uninitialized in eager."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if not tensor.dtype.is_floating_point and not tensor._version:
        return None
    if hasattr(tensor, "_fake_storage") and not tensor._fake_storage.is_known:
        return None
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


@pytest.mark.parametrize("seed", range(6))
def test_values(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", False)
    eager = _program(seed, _value)
    with fake_mode():
        found = _program(seed, _value)
    pairs = [(a, b) for a, b in zip(eager, found, strict=True) if b is not None]
    assert len(pairs) > 100
    assert all(a == b for a, b in pairs)


def test_sizes_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", False)
    learned: list[Any] = []
    learn = cache.learn_recipe
    monkeypatch.setattr(cache, "learn_recipe", lambda *a: learned.append(a[0]) or learn(*a))
    with fake_mode():
        for i in range(2, 12):
            torch.empty(70, i).uniform_(-1 / i, 1 / i).detach()
    names = [func.__name__ for func in learned]
    for name in ("empty.memory_format", "uniform_.default", "detach.default"):
        assert names.count(name) == 2


def test_recipes_of_everyday_layers_confirm_those_of_their_families() -> None:
    with fake_mode():
        for width in (70, 80, 90):
            for layer in (torch.nn.Linear(width, 3), torch.nn.Conv1d(width, 5, 3)):
                for parameter in layer.parameters():
                    torch.nn.init.zeros_(parameter)
            torch.nn.LayerNorm(width)
            torch.nn.Embedding(width, 4, padding_idx=0)
            torch.nn.BatchNorm2d(width).reset_parameters()
    assert not [f for f in other_sizes._families.values() if f.is_contradicted]


def test_a_family_that_is_contradicted_is_not_used() -> None:
    with fake_mode():
        torch.zeros(70, 3)
        (family,) = other_sizes._families.values()
        torch.zeros(70, 4)
        assert family.is_confirmed
        family.is_contradicted = True
        call = other_sizes.member(torch.ops.aten.zeros.default, ([70, 5],), {"device": None})
        assert call is None or other_sizes.follow(call) is None


@pytest.mark.parametrize("names", [("zeros", "zeros"), ("zeros", "empty"), ("empty", "zeros")])
def test_deferred_after_plain(names: tuple[str, str]) -> None:
    """A deferred call is recorded correctly if its recipe is derived from those of plain calls."""
    for name in names[:1]:
        with fake_mode():
            for i in range(2, 6):
                getattr(torch, name)(70, i)

    def layer() -> torch.nn.Module:
        module = torch.nn.Linear(3, 70)
        for i in range(2, 9):
            tensor = getattr(torch, names[1])(70, i)
            module.register_buffer(f"b{i}", tensor.fill_(i).normal_(0, i))
        return module

    torch.manual_seed(1)
    expected = layer().state_dict()
    torch.manual_seed(1)
    module = materialize_module(deferred_init(layer))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, expected[name])


def test_numbers_of_numpy() -> None:
    """A deviation may be a numpy float, as in SigLIP, whose comparisons return numpy booleans."""
    with fake_mode():
        for size in range(70, 76):
            torch.nn.init.normal_(torch.empty(size, size), std=np.sqrt(1 / size))
            torch.empty(size, size).uniform_(-np.sqrt(1 / size), np.sqrt(1 / size))
