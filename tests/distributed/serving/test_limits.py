"""Times near their limits: what the errors of estimates say of them."""

from __future__ import annotations

import pytest

from tests.distributed.serving.test_search import searched
from torchfake.distributed.serving.limits import Limits


def test_an_error_that_is_not_known_is_no_error_of_nothing() -> None:
    """On a GPU that was not compared a time near its limit is neither sure nor surely past it."""
    (alone,) = searched(gpu="rtx4090-24gb", gpus=1).offers
    assert alone.plan.errors is None
    assert alone.plan.steady is not None
    for factor, said in ((1.05, "5 % below"), (1 / 1.1, "10 % past")):
        found = searched(gpu="rtx4090-24gb", gpus=1, tpot=factor * alone.plan.steady.seconds)
        text = f"(perhaps: {said} its limit, less than the error of 16 % of other GPUs)"
        assert text in str(found)
        assert all(found.limits.may_be_missed_by(offer.plan) for offer in found.meeting)


def test_what_meets_a_limit_by_less_than_the_error_is_not_named_first() -> None:
    """More GPUs that surely meet it are; fewer that may stand below them, with what they cost."""
    prices = {"h100": 3.0}
    one, *_ = sorted(searched(gpu="h100-80gb").offers, key=lambda offer: offer.num_gpus)
    assert one.plan.steady is not None
    found = searched(gpu="h100-80gb", prices=prices, tpot=1.01 * one.plan.steady.seconds)
    assert found.answer is not None
    assert (found.answer.num_gpus, found.answer.hourly) == (2, 6.0)
    assert [(x.num_gpus, x.hourly, x.meets) for x in found.perhaps] == [(1, 3.0, True)]
    assert found.cheapest is found.answer
    lines = str(found).splitlines()
    assert lines[0].startswith("cheapest")
    assert "; least by the hour and by the token of what surely meets the limits" in lines[0]
    (below,) = (line for line in lines if line.startswith("perhaps"))
    assert "1 x h100-80gb in bf16: " in below
    assert "(perhaps: 1 % below its limit, less than the error of 16 %)" in below
    assert str(searched(gpu="h100-80gb", tpot=found.limits.each_token)).startswith("fewest ")
    every = searched(gpu="h100-80gb", gpus=1, prices=prices, tpot=found.limits.each_token)
    assert every.answer is not None, "where nothing is sure, what may meet it is named"
    assert "(perhaps: 1 % below" in str(every).splitlines()[0]


def test_a_time_without_one_of_its_costs_does_not_surely_meet_a_limit() -> None:
    """The A100 expands a cache in fp8, for a time that is not counted."""
    (alone,) = searched(gpu="a100-80gb", gpus=1, cache_dtype="fp8").offers
    assert alone.plan.expands_cache
    assert alone.plan.steady is not None
    limit = 10 * alone.plan.steady.seconds
    both = searched(gpu="a100-80gb", gpus=1, cache_dtype=["fp8", "bf16"], tpot=limit)
    assert both.answer is not None
    assert not both.answer.plan.expands_cache
    only = searched(gpu="a100-80gb", gpus=1, cache_dtype="fp8", tpot=limit)
    assert ", without the time of expanding the cache, " in str(only).splitlines()[0]
    (row,) = (line for line in str(only).splitlines() if line.startswith("1 x a100-80gb "))
    assert row.endswith("perhaps"), "the column of limits"
    free = searched(gpu="a100-80gb", gpus=1, cache_dtype="fp8")
    assert not free.limits.may_be_missed_by(free.offers[0].plan)


@pytest.mark.parametrize(
    ("first", "each", "is_near"),
    [
        (0.76, 0.1, False), (0.78, 0.1, True), (1.22, 0.1, True), (1.24, 0.1, False),
        (0.1, 0.85, False), (0.1, 0.87, True), (0.1, 1.15, True), (0.1, 1.17, False),
    ],
)  # fmt: skip
def test_errors_of_first_tokens_are_of_times_and_others_of_throughput(
    first: float, each: float, is_near: bool
) -> None:
    """Each as a share of its limit: a first token may take 1 / (1 - 0.23) times as long as its
    estimate, another one 1.16 times.
    """
    (alone,) = searched(gpu="h100-80gb", gpus=1).offers
    steady = alone.plan.steady
    assert steady is not None
    limits = Limits(steady.first_token_seconds / first, steady.seconds / each)
    assert bool(limits.near(alone.plan, steady)) is is_near


def test_users_who_fill_a_server_to_its_limits_are_compared_by_their_tokens_alone() -> None:
    """Their times are at the limit by choice: fewer users would surely meet it."""
    (alone,) = searched(gpu="h100-80gb", gpus=1, users=64).offers
    assert alone.plan.steady is not None
    filled = searched(gpu=("a100-80gb", "h100-80gb"), users=None, tpot=alone.plan.steady.seconds)
    assert filled.surest == filled.meeting
    most = max(offer.plan.tokens_per_second_per_gpu or 0.0 for offer in filled.meeting)
    assert (filled.answer and filled.answer.plan.tokens_per_second_per_gpu) == most
