"""What a search for servers says of changes: fewer bits, more GPUs, and what comes nearest."""

from __future__ import annotations

import pytest

from tests.distributed.serving.test_search import KINDS, searched
from tests.distributed.serving.test_serve import served
from torchfake.inspect.figures.page import html_page
from torchfake.inspect.records.record import on_page
from torchfake.inspect.records.units import seconds_text

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import


def test_fewer_bits_near_to_a_limit_are_a_perhaps_too() -> None:
    given = {"gpu": ("h100-80gb",), "gpus": 2, "utilization": 0.0059}
    given["users"] = served(utilization=0.0059).most_users_on_average + 1
    ((_, offer),) = searched(**given).remedies
    seconds = offer.plan.steady.seconds  # type: ignore[union-attr]
    (line,) = (
        line
        for line in str(searched(**given, tpot=1.05 * seconds)).splitlines()
        if line.startswith("fewer GPUs")
    )
    assert f"each token {seconds_text(seconds)} (perhaps: 5 % below its limit" in line


def test_where_nothing_meets_the_limits_what_is_reached_is_shown() -> None:
    none = searched(tpot=1e-9)
    each = min(x.plan.steady.seconds for x in none.offers if x.plan.steady)
    text = str(none)
    (closest,) = text.split("\nnearest tried  ")[1].splitlines()[:1]
    assert f"each token {seconds_text(each)} ({each / 1e-9:.1f} times its limit)" in closest
    first = text.splitlines()[0]
    assert "; even one user is past the limits: first token " in first
    assert "6 ways on up to 2 x a100-80gb or 2 x h100-80gb, " in text
    assert {x.gpu for x in none.best} == {*KINDS}
    assert text.count("  past: each token\n") == len(none.best)  # the column of limits
    assert "(none meets the limits)" in text
    change, offer = none.almost or ("", none.closest)
    assert (change, offer.num_gpus) == ("--weights awq --cache-dtype fp8 and more GPUs", 8)
    formats = "weights in bf16, fp8, int8 or awq, caches in the model's dtype or fp8"
    assert f"  else         nor does one on up to 4 times the GPUs, with {formats}\n" in text
    assert f" nearest, with {change}: 8 x " in text
    assert " in time " in text
    assert " fits  limits" in text
    assert none.to_dict()["almost"]["change"] == change


def test_its_page_shows_what_comes_nearest_and_by_how_much() -> None:
    none = searched(tpot=1e-9)
    (page,) = on_page(none)
    each = none.closest.plan.steady.seconds  # type: ignore[union-attr]
    assert page.cards[f"each token, {each / 1e-9:.1f} times its limit"] == seconds_text(each)
    assert page.cards["GPUs, nearest of those tried"].startswith(f"{none.closest.num_gpus} x ")
    above = html_page([none]).split("<main>")[0]
    assert "<p>Nor does one on up to 4 times the GPUs, " in above
    options = '--weights awq <span class="flag">--cache-dtype</span> fp8'
    assert f"<p>Nearest, with {options} and more GPUs: 8 x " in above


def test_fewer_bits_with_which_fewer_gpus_do_are_named() -> None:
    given = {"gpu": ("h100-80gb",), "gpus": 2, "utilization": 0.0059}
    one = served(utilization=0.0059)
    found = searched(**given, users=one.most_users_on_average + 1)
    assert found.fewest is not None
    assert found.fewest.num_gpus == 2
    ((change, offer),) = found.remedies
    assert (change, offer.num_gpus) == ("--cache-dtype fp8", 1)
    assert "fewer GPUs  --cache-dtype fp8: 1 x h100-80gb in bf16, cache in fp8" in str(found)
    above = html_page([found]).split("<main>")[0]
    option = '<span class="flag">--cache-dtype</span> fp8'
    assert f"<p>Fewer GPUs with {option}: 1 x h100-80gb in bf16, cache in fp8" in above
    assert searched(**given, users=1).remedies == ()


def test_the_cheapest_change_is_named_beside_the_least_one() -> None:
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 8}
    sizes |= {"num_attention_heads": 64, "num_key_value_heads": 8}
    given = {"users": 100, "context": 8192, "prompt": 1024, "gpus": 2, "utilization": 0.2}
    kinds = {"gpu": ("h100-80gb", "h200-141gb"), "prices": {"h100": 2.5, "h200": 3.5}}
    overrides = tuple(f"{name}={size}" for name, size in sizes.items())
    found = searched(**given, **kinds, overrides=overrides)
    assert [(change, offer.gpu, offer.hourly) for change, offer in found.remedies] == [
        ("--weights awq --cache-dtype fp8", "h100-80gb", 2.5),
        ("--cache-dtype fp8", "h200-141gb", 3.5),
    ]
    first, *_ = str(found).splitlines()
    assert first.split()[:6] == ["cheapest", "2", "x", "h100-80gb", "in", "bf16"]
    less = "2.50 with --weights awq --cache-dtype fp8"
    assert f"; least by the hour and by the token, with weights in bf16 ({less}); " in first
    above = html_page([found]).split("<main>")[0]
    assert above.count("<p>Cheaper with ") == 2


def test_of_fewer_bits_with_prices_only_what_is_cheaper_is_named() -> None:
    given = {"gpu": ("h100-80gb",), "gpus": 2, "utilization": 0.0059, "prices": {"h100": 2}}
    one = served(utilization=0.0059)
    ((_, offer),) = searched(**given, users=one.most_users_on_average + 1).remedies
    assert offer.hourly == 2
    assert searched(**given, users=1).remedies == ()
