"""The least recomputation that fits, against all ways there are."""

from __future__ import annotations

import itertools
import random

import pytest

from torchfake.distributed.search import knapsack
from torchfake.distributed.search.knapsack import Option, least_seconds

Blocks = list[list[Option]]


def drawn(random_numbers: random.Random) -> Blocks:
    """Blocks of a few kinds, in any order."""
    kinds = [
        [
            Option(random_numbers.randint(0, 9), random_numbers.choice([0.0, 0.5, 0.75, 2.0]))
            for _ in range(random_numbers.randint(1, 3))
        ]
        for _ in range(random_numbers.randint(1, 3))
    ]
    return [random_numbers.choice(kinds) for _ in range(random_numbers.randint(1, 6))]


def least_of_all(blocks: Blocks, budget: int) -> float | None:
    ways = itertools.product(*blocks)
    fits = [way for way in ways if sum(option.num_bytes for option in way) <= budget]
    return min((sum(option.seconds for option in way) for way in fits), default=None)


def taken(blocks: Blocks, chosen: list[int]) -> list[Option]:
    return [options[i] for options, i in zip(blocks, chosen, strict=True)]


def test_no_way_is_better() -> None:
    random_numbers = random.Random(0)
    for _ in range(300):
        blocks = drawn(random_numbers)
        budget = random_numbers.randint(0, 9 * len(blocks))
        chosen, least = least_seconds(blocks, budget), least_of_all(blocks, budget)
        assert (chosen is None) == (least is None)
        if chosen is not None:
            found = taken(blocks, chosen)
            assert sum(option.num_bytes for option in found) <= budget
            assert sum(option.seconds for option in found) == least


def test_earlier_blocks_recompute_more() -> None:
    ways = [Option(30, 0.0), Option(12, 1.0), Option(1, 3.0)]
    chosen = least_seconds([ways] * 80, 500)
    assert chosen == [2] * 42 + [1] * 38


def test_with_too_many_ways_to_keep_it_still_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    random_numbers = random.Random(1)
    blocks = [
        [Option(random_numbers.randint(50, 99), 0.0), Option(random_numbers.randint(0, 9), 1.0 + i)]
        for i in range(12)
    ]
    least = least_of_all(blocks, 500)
    monkeypatch.setattr(knapsack, "_MOST_POINTS", 100)
    chosen = least_seconds(blocks, 500)
    assert chosen is not None
    assert least is not None
    found = taken(blocks, chosen)
    assert sum(option.num_bytes for option in found) <= 500
    assert sum(option.seconds for option in found) <= 1.1 * least
