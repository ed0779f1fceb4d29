"""A search without a number of users: each way serves as many as it can; tokens are compared."""

from __future__ import annotations

import json

import pytest

from tests.distributed.serving.test_search import searched
from tests.distributed.serving.test_serve import SMALL, served
from torchfake.distributed import ServingSearch
from torchfake.inspect.records.record import on_page, shown
from torchfake.inspect.records.units import price_text
from torchfake.inspect.show.layout import narrowed

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

PRICES = {"h100": 3.0, "a100": 1.5}


@pytest.fixture(scope="module")
def filled() -> ServingSearch:
    return searched(users=None, prices=PRICES, utilization=0.0059, context=2048)


def test_each_way_has_the_most_users_with_full_contexts(filled: ServingSearch) -> None:
    assert {offer.plan.verdict for offer in filled.offers} == {"yes"}
    for offer in filled.offers:
        one_more = offer.plan.serving(offer.plan.users + 1)
        assert one_more.verdict != "yes"


def test_each_way_has_the_most_users_that_are_in_time(filled: ServingSearch) -> None:
    (free,) = (o for o in filled.offers if (o.gpu, o.mesh) == ("a100-80gb", "1 GPU"))
    assert free.plan.steady is not None
    alone = {"users": None, "gpus": 1, "gpu": "a100-80gb", "utilization": 0.0059, "context": 2048}
    (offer,) = searched(**alone, tpot=0.99 * free.plan.steady.seconds).offers
    assert 0 < offer.plan.users < free.plan.users
    assert offer.meets
    assert not offer.limits.met_by(offer.plan.serving(offer.plan.users + 1))


def test_the_cheapest_token_is_named_first(filled: ServingSearch) -> None:
    least = min(filled.offers, key=lambda offer: offer.price or 0.0)
    assert filled.answer is least
    first = str(filled).splitlines()[0]
    users = f"{least.plan.users:,} users, "
    assert first.startswith(f"cheapest  {least.num_gpus} x {least.gpu} in bf16")
    assert users in first
    assert "; least by the token, with weights in bf16 (" in first
    assert "; serves as many users as have room for full contexts, with answers of " in first
    (page,) = on_page(filled)
    assert page.cards["price/1M"] == price_text(least.price or 0.0)
    _, ways = shown(filled)
    on_phone = narrowed(ways, 46)
    assert [ways.columns[i].name for i in on_phone.shown][-1] == "price/1M"
    data = json.loads(json.dumps(filled.to_dict()))
    assert (data["users"], data["answer"]["price"]) == (None, least.price)


def test_what_is_alike_within_the_error_is_named(filled: ServingSearch) -> None:
    """The time of a small model is that of starting kernels, so what costs half is first."""
    assert filled.as_good == []
    same_price = searched(users=None, prices={"h100": 3.0, "a100": 3.0}, context=2048)
    (other,) = same_price.as_good
    assert f"\nwithin the error of 16 %  1 x {other.gpu} in bf16" in str(same_price)


def test_without_prices_most_tokens_of_a_gpu_are_named_first() -> None:
    found = searched(users=None, utilization=0.0059, context=2048)
    most = max(found.offers, key=lambda offer: offer.plan.tokens_per_second_per_gpu or 0.0)
    assert found.answer is most
    assert str(found).startswith(f"most tokens  {most.num_gpus} x {most.gpu} in bf16")


def test_fewer_bits_are_named_where_tokens_then_cost_less(filled: ServingSearch) -> None:
    (_, best), *_ = filled.remedies
    assert best.price is not None
    assert filled.answer is not None
    assert best.price < (filled.answer.price or 0.0)


def test_the_most_users_fit_and_one_more_does_not_where_sampling_takes_most_memory() -> None:
    """The logits of all users, which are sorted, take memory of the cache: 41 bytes each."""
    of_many = {"overrides": [*SMALL, "vocab_size=128256"], "utilization": 0.02, "suggests": False}
    asked = [served(users=users, **of_many) for users in (1, 64, 900)]
    ((most, average),) = {(plan.most_users, plan.most_users_on_average) for plan in asked}
    assert asked[-1].memory.cache > 0
    verdicts = [served(users=n, **of_many).verdict for n in (most, average, average + 1)]
    assert verdicts == ["yes", "tight", "no"]
