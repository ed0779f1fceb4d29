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
        assert not any(offer.is_sure for offer in found.meeting)


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
