"""What initialisers do to tensors of a size that they were not called on yet."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from tests._patches.sources.calls import called_in
from tests._patches.sources.test_initializers import CALLS, assert_as_eager
from torchfake import fake_mode
from torchfake._cache import cache

init = nn.init


@pytest.fixture(autouse=True)
def _nothing_learned() -> None:
    cache.initialisers.clear()
    cache.families.clear()


SIZES = [(40, 50), (33, 7), (48, 64), (17, 19), (8, 8), (9, 9), (2, 33), (1200, 1000), (64, 2)]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_tensors_of_other_sizes(name: str, dtype: torch.dtype) -> None:
    sizes = iter([(*size, *more) for more in ((), (3,)) for size in SIZES] * 2)
    assert_as_eager(CALLS[name], lambda: torch.empty(next(sizes), dtype=dtype), 2 * len(SIZES))
    for length in (100, 16, 65, 70, 4100):
        assert_as_eager(CALLS[name], functools.partial(torch.empty, length, dtype=dtype), 2)


def test_what_follows_from_other_sizes_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", False)
    with fake_mode():
        for size in ((40, 50), (33, 7), (33, 9)):
            init.kaiming_uniform_(torch.empty(size), a=1.0)

        def is_run(size: tuple[int, ...], a: float) -> bool:
            call = lambda: init.kaiming_uniform_(torch.empty(size), a=a)  # noqa: E731
            return "calculate_gain" in called_in(call)

        assert not is_run((47, 51), 1.0)
        assert is_run((47, 51), 2.0)
        assert is_run((47, 51, 2), 1.0)


def test_a_scale_that_no_dtype_has_is_refused_on_each_size() -> None:
    sizes = iter([(400, 500), (300, 500), (3000, 5000), (9, 9)] * 2)
    assert_as_eager(
        lambda t: init.xavier_uniform_(t, gain=1e39), lambda: torch.empty(next(sizes)), 4
    )


NUMBERS = [-1.0, -0.5, 0.0, -0.0, 0.25, 1, 1.0, 2, True, 1e3, 1e5, float("inf")]


@pytest.mark.parametrize("name", ["uniform_", "normal_"])
def test_draws_with_other_numbers(name: str) -> None:
    """Only the order of the numbers decides: empty ranges and negative deviations are refused."""
    draw, last = getattr(init, name), {"uniform_": "b", "normal_": "std"}[name]
    for i, numbers in enumerate(itertools.product(NUMBERS, NUMBERS)):
        size = (16 + i % 5, 5 + i % 7)
        make = functools.partial(torch.empty, size)
        assert_as_eager(lambda t, n=numbers: draw(t, *n), make, 1)
        assert_as_eager(lambda t, n=numbers: draw(t, n[0]), make, 1)
        assert_as_eager(lambda t, n=numbers: draw(t, **{last: n[1]}), make, 1)


def test_draws_with_other_numbers_are_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", False)
    with fake_mode():
        for i in range(2, 10):
            init.uniform_(torch.empty(20 * i), -1 / i, 1 / i)
        assert {key[0].__name__ for key in cache.families} == {"uniform_", "_no_grad_uniform_"}
        assert len(cache.families) == 2


@pytest.mark.parametrize("bounds", [(0.0, 0.02, -2.0, 2.0), (0.0, 1.0, -2.0, 2.0)])
def test_truncated_normals_of_other_sizes(bounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> Any:
        torch.manual_seed(3)
        with fake_mode() as mode:
            weights = [torch.ones(20, 30 + i // 2) for i in range(8)]
            for weight in weights:
                init.trunc_normal_(weight, *bounds)
            values = [(w._version, w._fake_storage.value) for w in weights]  # type: ignore[attr-defined]
            return values, str(mode.answers), torch.get_rng_state().tolist()

    monkeypatch.setattr(cache.settings, "checking", False)
    remembered = seen()
    assert len(cache.families) == (bounds[1] == 0.02)
    cache.clear()
    monkeypatch.setattr(cache.settings, "enabled", False)
    assert seen() == remembered


def test_a_negative_zero_is_a_mean_of_its_own() -> None:
    """Of the draws that are kept: their mean is their value where nothing is drawn."""

    def seen() -> list[Any]:
        torch.manual_seed(3)
        means = (0.0, 0.0, -0.0, 0.0, -0.0)
        return [str(init.normal_(torch.empty(8), mean, 0.0).tolist()) for mean in means]

    eager = seen()
    with fake_mode():
        assert seen() == eager
