"""A search for a server as rows: the answers first, then the offers that no other one beats.

Input: a ServingSearch. Output: blocks of rows. Invariant: its first line is an answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfake.distributed.serving.search import Limits, Offer, ServingSearch
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import seconds_text
from torchfake.inspect.show.rows import Block, Column, Line, Row, as_lines

_COLUMNS = (
    Column("GPUs"),
    Column("weights", need=2, under="weights in "),
    Column("layout", need=3, under="layout "),
    Column("first token", seconds_text, need=1),
    Column("each token", seconds_text),
    Column("each GPU", "{:,.0f}/s".format),
    Column("most users", "{:,}".format, need=4),
    Column("1M tokens", "{:,.2f}".format),
)


@shown.register
def _(found: ServingSearch, *, depth: int | None = None) -> list[Block]:
    rows = [_row(offer) for offer in found.best]
    return [as_lines(_answers(found)), *([Block(rows, _COLUMNS)] if rows else [])]


def _answers(found: ServingSearch) -> Iterator[Line]:
    limits = limits_text(found.limits)
    if not found.fits:
        yield "fits", f"no: none of {len(found.offers)} ways serves {found.users:,} users{limits}"
        yield from _nearest(found)
    if found.fewest is not None:
        yield "fewest", f"{_offer_text(found.fewest)}; serves {found.users:,} users{limits}"
    if found.fastest is not None and found.fastest is not found.fewest:
        yield "fastest", f"{_offer_text(found.fastest)}, the most on each GPU"
    if found.cheapest is not None:
        yield "cheapest", _offer_text(found.cheapest)
    refused = f"; {found.refused} layouts do not suit the model" if found.refused else ""
    kinds = ", ".join(dict.fromkeys(offer.gpu for offer in found.offers))
    yield "tried", f"{len(found.offers)} ways on {kinds}{refused}"
    if found.fits:
        yield "below", "ways that no other beats in both the time of a token and tokens per GPU"


def limits_text(limits: Limits) -> str:
    """The limits as text: ``, first token in 500 ms, each token in 50 ms``."""
    found = ""
    for name, value in (("first", limits.first_token), ("each", limits.each_token)):
        found += "" if value is None else f", {name} token in {seconds_text(value)}"
    return found


def _offer_text(offer: Offer) -> str:
    steady = offer.plan.steady
    assert steady is not None
    layout = "" if offer.mesh == "1 GPU" else f" ({offer.mesh})"
    price = "" if offer.price is None else f", {offer.price:,.2f} for a million tokens"
    return (
        f"{offer.num_gpus} x {offer.gpu} in {offer.plan.weights}{layout}: first token "
        f"{seconds_text(steady.first_token_seconds)}, each token {seconds_text(steady.seconds)}, "
        f"{offer.plan.tokens_per_second_per_gpu:,.0f} tokens/s on each GPU{price}"
    )


def _nearest(found: ServingSearch) -> Iterator[Line]:
    """What comes nearest: the way that serves most users, and the fastest token."""
    served = [offer for offer in found.offers if offer.plan.steady is not None]
    if not served:
        yield "nearest", "the model's weights fit in none of them"
        return
    most = max(served, key=lambda offer: offer.plan.most_users_on_average)
    number = most.plan.most_users_on_average
    yield "nearest", f"for {number:,} users, {_offer_text(most)}"


def _row(offer: Offer) -> Row:
    steady = offer.plan.steady
    assert steady is not None
    values = (
        offer.plan.weights,
        offer.mesh,
        steady.first_token_seconds,
        steady.seconds,
        offer.plan.tokens_per_second_per_gpu,
        offer.plan.most_users_on_average,
        offer.price,
    )
    return Row(f"{offer.num_gpus} x {offer.gpu}", values)
