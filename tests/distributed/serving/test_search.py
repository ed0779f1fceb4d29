"""``search_servers``: which GPUs and layouts serve a model within limits."""

from __future__ import annotations

import json
import re

import pytest

from tests.distributed.serving.test_serve import LLAMA, SMALL, served
from torchfake import profiles
from torchfake.distributed import ServingSearch, search_servers
from torchfake.distributed.serving import search
from torchfake.errors import InputsError
from torchfake.inspect.records.record import on_page, shown
from torchfake.inspect.records.units import seconds_text
from torchfake.inspect.show.layout import narrowed

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

KINDS = ("a100-80gb", "h100-80gb")


def searched(**options: object) -> ServingSearch:
    given = {"users": 4, "context": 64, "gpu": KINDS, "gpus": 2, "overrides": SMALL, **options}
    return search_servers(LLAMA, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> ServingSearch:
    return searched(prices={"h100": 3.0, "a100": 1.5}, weights=["bf16", "fp8"])


def test_layouts_of_each_gpu_are_tried_in_each_format_that_it_has(found: ServingSearch) -> None:
    tried = {(offer.gpu, offer.mesh, offer.plan.weights) for offer in found.offers}
    meshes = ("1 GPU", "tp=2", "replicate=2")
    assert tried == {
        *(("a100-80gb", mesh, "bf16") for mesh in meshes),
        *(("h100-80gb", mesh, name) for mesh in meshes for name in ("bf16", "fp8")),
    }


def test_an_offer_on_a_gpu_that_shares_a_run_is_that_of_a_run_of_its_own() -> None:
    kinds = ("h100-80gb", "l40s-48gb", "b200-180gb", "rtx5090-32gb", "a100-80gb")
    for offer in searched(gpu=kinds, gpus=1).offers:
        alone = served(gpu=offer.gpu)
        assert (offer.plan.memory, offer.plan.steady) == (alone.memory, alone.steady)


def test_each_type_of_gpu_has_a_number_of_its_own() -> None:
    offers = searched(gpu={"h100-80gb": 1, "l40s-48gb": None}, gpus=2).offers
    assert {(offer.gpu, offer.num_gpus) for offer in offers} == {
        ("h100-80gb", 1), ("l40s-48gb", 1), ("l40s-48gb", 2),
    }  # fmt: skip


def test_tensors_are_split_in_a_node_and_layers_between_nodes() -> None:
    meshes = {offer.mesh for offer in searched(gpu={"h100-80gb": 16}).offers}
    assert {"tp=8", "pp=2,tp=8", "replicate=2,tp=8"} <= meshes
    assert "tp=16" not in meshes


def test_each_offer_is_the_plan_of_its_layout(found: ServingSearch) -> None:
    offer = next(x for x in found.offers if (x.gpu, x.mesh) == ("h100-80gb", "tp=2"))
    alone = served(gpus=2)
    assert offer.plan.memory == alone.memory
    assert offer.plan.steady == alone.steady


def test_the_fewest_gpus_the_fastest_and_the_cheapest_are_named(found: ServingSearch) -> None:
    assert found.fewest is not None
    assert found.fastest is not None
    assert found.cheapest is not None
    assert found.fewest.num_gpus == 1
    rates = [offer.plan.tokens_per_second_per_gpu or 0 for offer in found.meeting]
    assert found.fastest.plan.tokens_per_second_per_gpu == max(rates)
    prices = [offer.price for offer in found.meeting if offer.price is not None]
    assert len(prices) == len(found.meeting)
    assert found.cheapest.price == min(prices)


def test_the_least_price_of_an_hour_is_named(found: ServingSearch) -> None:
    assert found.answer is not None
    assert (found.answer.hourly, found.answer.gpu) == (1.5, "a100-80gb")
    assert found.answer.hourly == min(offer.hourly or 0.0 for offer in found.meeting)


def test_the_fewest_gpus_of_each_type_are_among_the_best(found: ServingSearch) -> None:
    assert {offer.gpu for offer in found.best} == {*KINDS}


def test_what_is_nearest_is_the_most_users_that_meet_the_limits() -> None:
    alone = {"users": 500, "gpus": 1, "gpu": ("h100-80gb",)}
    (offer,) = searched(**alone).offers
    (_, first), (users, second), (_, third), *_ = offer.plan.by_users
    assert first.seconds < second.seconds < third.seconds
    limit = (second.seconds + third.seconds) / 2
    limited = searched(**alone, tpot=limit)
    assert not limited.fits
    assert limited.nearest is not None
    most, nearest = limited.nearest
    assert most > users  # not one of those that tables show
    within, beyond = (nearest.plan.with_users(n).seconds for n in (most, most + 1))
    assert within <= limit < beyond
    assert f"{most} users on 1 x h100-80gb" in str(limited).split("nearest tried  ")[1]


def test_an_answer_says_how_many_users_are_served_in_time() -> None:
    limit = 1.2 * served().with_users(100).seconds
    found = searched(users=100, tpot=limit)
    assert found.answer is not None
    plan, most = found.answer.plan, found.limits.most_users(found.answer.plan)
    within, beyond = (plan.with_users(n).seconds for n in (most, most + 1))
    assert within <= limit < beyond
    first = str(found).splitlines()[0]
    assert first.endswith(f", each token within {seconds_text(limit)}")
    assert f" tokens/s, at most {most:,} users; serves 100 users" in first
    (page,) = on_page(found)
    assert page.cards["users within the limits"] == f"{most:,}"
    assert "in time" in str(found)
    assert "in time" not in str(searched(users=100))


def test_without_prices_other_types_with_as_few_gpus_are_named() -> None:
    every = searched()
    assert every.fewest is not None
    (other,) = every.as_good
    assert {other.gpu, every.fewest.gpu} == {*KINDS}
    assert f"\nas few    1 x {other.gpu} in bf16: first token " in str(every)
    assert every.to_dict()["as_good"][0]["gpu"] == other.gpu
    assert searched(prices={"h100": 3.0}).as_good == []


def test_what_no_time_contains_is_said(found: ServingSearch) -> None:
    for line in found.offers[0].plan.left_out:
        assert line in str(found)


def test_a_price_is_that_of_a_million_tokens(found: ServingSearch) -> None:
    offer = next(x for x in found.offers if x.gpu == "a100-80gb")
    per_hour = (offer.plan.tokens_per_second_per_gpu or 0) * 3600
    assert offer.price == pytest.approx(1.5 / per_hour * 1e6)


def test_an_offer_that_no_other_beats_is_among_the_best(found: ServingSearch) -> None:
    def figures(offer: object) -> tuple[float, float]:
        plan = offer.plan  # type: ignore[attr-defined]
        return plan.steady.seconds, -plan.tokens_per_second_per_gpu

    best = set(map(figures, found.best))
    for mine in map(figures, found.meeting):
        beaten = any(
            o[0] <= mine[0] and o[1] <= mine[1] and o != mine for o in map(figures, found.meeting)
        )
        assert beaten or mine in best


def test_limits_leave_out_what_is_slower() -> None:
    every = searched()
    seconds = sorted({x.plan.steady.seconds for x in every.offers if x.plan.steady})
    some = searched(tpot=(seconds[0] + seconds[1]) / 2)
    assert {x.plan.steady.seconds for x in some.meeting if x.plan.steady} == {seconds[0]}
    none = searched(ttft=1e-9)
    assert (none.fits, none.fewest) == (False, None)
    assert str(none).startswith(
        "fits           no way on up to 2 GPUs with weights in bf16 serves 4 users, the first "
    )


def test_where_nothing_meets_the_limits_changes_are_named_with_which_something_does() -> None:
    """Fewer bits on as many GPUs, and twice as many GPUs."""
    given = {"gpu": ("h100-80gb",), "gpus": 1, "utilization": 0.0059}
    given["users"] = 1 + searched(**given).offers[0].plan.most_users_on_average
    none = searched(**given)
    (fewer, eight), (more, two) = none.remedies
    assert (none.fits, fewer, more) == (False, "--cache-dtype fp8", "more GPUs")
    assert (eight.num_gpus, two.num_gpus) == (1, 2)
    assert eight.to_dict() in [o.to_dict() for o in searched(cache_dtype="fp8", **given).offers]
    assert two.to_dict() in [o.to_dict() for o in searched(**{**given, "gpus": 2}).offers]
    assert (
        "  try          --cache-dtype fp8: 1 x h100-80gb in bf16, cache in fp8: first token "
        in str(none)
    )
    assert [each["change"] for each in none.to_dict()["remedies"]] == [fewer, more]
    assert searched(ttft=1e-9).remedies == ()


def test_fewer_bits_and_more_gpus_are_tried_together_where_neither_alone_is_enough() -> None:
    """The fewest GPUs with which a search with these options finds something too."""
    given = {"gpu": ("h100-80gb",), "gpus": 1, "utilization": 0.0059, "weights": "bf16"}
    more = searched(**{**given, "gpus": 4})
    given["users"] = 1 + max(o.plan.most_users_on_average for o in more.offers)
    none = searched(**given)
    ((change, offer),) = none.remedies
    assert (none.fits, change) == (False, "--cache-dtype fp8 and more GPUs")
    again = searched(**{**given, "gpus": offer.num_gpus}, cache_dtype="fp8")
    assert offer.to_dict() == (again.fewest and again.fewest.to_dict())
    assert not searched(**{**given, "gpus": offer.num_gpus - 1}, cache_dtype="fp8").fits


def test_weights_and_caches_that_were_asked_for_are_left_as_they_are() -> None:
    given = {"gpu": ("h100-80gb",), "gpus": 1, "utilization": 0.0059, "users": 10_000}
    of_weights = searched(weights="bf16", **given)
    of_caches = searched(cache_dtype="bf16", **given)
    assert not any("--weights" in change for change, _ in of_weights.remedies)
    assert not any("--cache-dtype" in change for change, _ in of_caches.remedies)


def test_its_first_line_names_the_fewest_gpus_or_with_prices_the_cheapest(
    found: ServingSearch,
) -> None:
    assert str(found).startswith("cheapest     1 x a100-80gb in bf16")
    assert str(searched()).startswith("fewest    1 x ")


def test_the_first_line_says_whether_all_users_fit_with_full_contexts() -> None:
    some = served(utilization=0.0059)
    users = some.most_users + 1
    assert users <= some.most_users_on_average
    given = {"gpu": ("h100-80gb",), "gpus": 1, "utilization": 0.0059}
    tight, whole = (str(searched(users=n, **given)).splitlines()[0] for n in (users, users - 1))
    assert tight.startswith("fewest    1 x h100-80gb in bf16, tight: first token ")
    average = "at the average length of their sequences"
    assert tight.endswith(f"serves {users} users {average} with answers of 32 tokens")
    assert "tight" not in whole
    assert whole.endswith(f"serves {users - 1} users with answers of 32 tokens")


def test_with_prices_the_fewest_are_named_where_they_are_fewer(found: ServingSearch) -> None:
    assert found.fewest is not found.answer  # both are one GPU
    assert "\nfewest " not in str(found)
    given = {"utilization": 0.0059, "weights": "bf16"}
    of_h100, *_ = searched(**given, gpu="h100-80gb").offers
    users = of_h100.plan.most_users_on_average + 1
    other = str(searched(**given, users=users, prices={"a100": 3, "h100": 0.1}))
    first, *rest = other.splitlines()
    assert first.split()[:4] == ["cheapest", "2", "x", "h100-80gb"]
    assert any(line.split()[:4] == ["fewest", "1", "x", "a100-80gb"] for line in rest)


def test_on_a_phone_whether_it_fits_and_the_price_stay(found: ServingSearch) -> None:
    _, ways = shown(found)
    on_phone = narrowed(ways, 46)
    names = [ways.columns[i].name for i in on_phone.shown]
    assert names == ["GPUs", "each token", "fits", "price/hour"]
    assert {"weights", "layout", "first token"} == {ways.columns[i].name for i in on_phone.under}
    assert on_phone.left_out == ["price/1M", "each GPU", "in memory"]


def test_the_least_price_is_said_to_be_of_gpus_with_a_price(found: ServingSearch) -> None:
    assert "of GPUs with a price" not in str(found)
    some = str(searched(prices={"h100": 3})).splitlines()[0]
    assert "3.00 an hour" in some
    assert ", of GPUs with a price; " in some


def test_what_costs_least_by_the_token_is_said_where_it_is_another(found: ServingSearch) -> None:
    is_another = found.cheapest is not found.answer
    assert is_another == ("\n  by token " in str(found))
    (alone,) = searched(gpu="h100-80gb", gpus=1, prices={"h100": 3}).best
    assert alone.hourly == 3
    text = str(searched(gpu="h100-80gb", gpus=1, prices={"h100": 3}))
    assert "; least by the hour and by the token; " in text.splitlines()[0]
    assert "by token" not in text


def test_caches_are_tried_in_each_dtype_that_is_named() -> None:
    found = searched(gpu="h100-80gb", gpus=1, cache_dtype=["bf16", "fp8"])
    wide, narrow = found.offers
    assert (
        wide.to_dict() == searched(gpu="h100-80gb", gpus=1, cache_dtype="bf16").offers[0].to_dict()
    )
    assert 2 * narrow.plan.server.cache_bytes(1) == wide.plan.server.cache_bytes(1)
    assert "caches in bf16 or fp8" in str(found)
    assert "cache in fp8" in str(found)
    with pytest.raises(InputsError, match="fp7"):
        searched(cache_dtype=["fp8", "fp7"])


def test_what_misses_a_limit_by_less_than_the_error_is_a_perhaps() -> None:
    every = searched(gpu="h100-80gb")
    alone = next(x for x in every.offers if x.mesh == "1 GPU")
    assert alone.plan.steady is not None
    assert alone.plan.errors is not None
    seconds, error = alone.plan.steady.seconds, alone.plan.errors["seconds_per_token"]
    near, far = seconds / (1 + error / 2), seconds / (1 + 2 * error)
    found = searched(gpu="h100-80gb", gpus=1, tpot=near)
    assert (found.fits, [each.mesh for each in found.perhaps]) == (False, ["1 GPU"])
    assert "\nperhaps        1 x h100-80gb in bf16: first token " in str(found)
    assert str(found).startswith(
        "fits           no way on 1 GPU with weights in bf16 serves 4 users, each token within "
    )
    assert searched(gpu="h100-80gb", gpus=1, tpot=far).perhaps == []


def test_of_each_type_what_misses_by_less_than_the_error_on_fewer_gpus_is_a_perhaps() -> None:
    every = searched(prices={"h100-80gb": 2.5})
    alone = {x.gpu: x.plan.steady.seconds for x in every.offers if x.mesh == "1 GPU"}  # type: ignore[union-attr]
    near = searched(prices={"h100-80gb": 2.5}, tpot=min(alone.values()) / 1.01)
    by_kind = {each.gpu: each for each in near.perhaps}
    met = {offer.gpu for offer in near.meeting}
    assert met == {*alone}, "larger numbers of each type meet the limit"
    assert by_kind["h100-80gb"].hourly == 2.5
    assert (near.answer and near.answer.hourly) == 5
    data = near.to_dict()["perhaps"]
    assert [x["gpu"] for x in data] == [x.gpu for x in near.perhaps]
    assert all(x["most_users"] < near.users for x in data)


def test_of_whatever_is_named_a_time_nearer_to_its_limit_than_the_error_is_said_to_be() -> None:
    (alone,) = searched(gpu="h100-80gb", gpus=1).offers
    assert alone.plan.steady is not None
    seconds = alone.plan.steady.seconds
    near, far, past = (
        str(searched(gpu="h100-80gb", gpus=1, tpot=x * seconds)) for x in (1.05, 2, 1 / 1.1)
    )
    said = f"each token {seconds_text(seconds)} (perhaps: "
    assert f"{said}5 % below its limit, less than the error of 16 %)" in near.splitlines()[0]
    assert "perhaps" not in far
    (page,) = on_page(searched(gpu="h100-80gb", gpus=1, tpot=1.05 * seconds))
    assert page.verdict == "tight"  # the colour of a perhaps
    of_missed = f"{said}10 % past its limit, less than the error of 16 %)"
    for row in ("nearest", "perhaps"):
        (line,) = (line for line in past.splitlines() if line.startswith(row))
        assert of_missed in line


def test_a_price_is_of_all_that_its_name_means() -> None:
    own = profiles()["t4-16gb"]._replace(name="\N{GREEK SMALL LETTER PI}")
    kinds = {"a100-40gb": own, "a100-80gb": own, "rtx4090-24gb": own, own.name: own}
    prices = {"A100": 1.0, "4090": 2.0, own.name: 3.0}
    assert [*search._hourly(prices, kinds).values()] == [1.0, 1.0, 2.0, 3.0]


def test_json_has_the_best(found: ServingSearch) -> None:
    data = json.loads(json.dumps(found.to_dict()))
    assert len(data["best"]) == len(found.best)
    assert data["cheapest_by_token"]["price"] > 0
    first = data["answer"]
    assert str(found).startswith(f"cheapest     {first['gpus']} x {first['gpu']} in ")
    assert first["most_users"] == found.answer.most_users  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ttft": 0}, "ttft=0"),
        ({"tpot": -1}, "tpot=-1"),
        ({"gpus": 0}, "gpus=0"),
        ({"gpu": {"h100-80gb": 0}}, "gpu has 0 of 'h100-80gb'"),
        ({"prices": {"b200": 1.0}}, "prices has a price of 'b200', which is not in gpu"),
        ({"tpot": 30}, "tpot=0.0333"),
        ({"ttft": 500}, "500 ms are ttft=0.5"),
        ({"prices": {"h100": 0.0}}, "price of h100"),
        ({"weights": ["fp8", "fp7"]}, "fp7"),
    ],
)
def test_invalid_arguments_are_refused_by_name(options: dict[str, object], text: str) -> None:
    with pytest.raises(InputsError, match=text):
        searched(**options)


def test_what_was_asked_for_and_not_tried_is_said(found: ServingSearch) -> None:
    assert found.left_out == (
        "fp8 on a100-80gb, which has no kernels for it; fp8-weights are read in 8 bits and "
        "multiplied in 16",
    )
    assert "not tried" in str(found)
    assert found.to_dict()["left_out"] == [*found.left_out]


def test_formats_that_no_gpu_has_kernels_for_are_refused() -> None:
    with pytest.raises(InputsError, match=r"no kernels for weights='fp8'.*fp8-weights"):
        searched(gpu="a100-80gb", weights="fp8")


def test_the_lengths_of_requests_are_said(found: ServingSearch) -> None:
    request = found.offers[0].plan.server.request
    lengths = f"prompts of {request.prompt}, answers of {request.answer} tokens"
    assert lengths in str(found)


def test_gpus_on_which_nothing_meets_the_limits_are_named() -> None:
    every = searched()
    seconds = {kind: [] for kind in KINDS}  # type: ignore[var-annotated]
    for offer in every.offers:
        seconds[offer.gpu].append(offer.plan.steady.seconds)  # type: ignore[union-attr]
    slower = max(KINDS, key=lambda kind: min(seconds[kind]))
    faster = next(kind for kind in KINDS if kind != slower)
    some = searched(tpot=(min(seconds[faster]) + min(seconds[slower])) / 2)
    assert some.unmet == {slower: 3}
    (line,) = (line for line in str(some).splitlines() if line.startswith("none on"))
    said = seconds_text(min(seconds[slower]))
    assert re.search(
        f"{slower}: 3 ways; nearest \\d x {slower} .*: first token .*, each token {said} ", line
    )
