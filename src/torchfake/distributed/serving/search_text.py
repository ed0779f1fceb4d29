"""A search for a server as rows: the answer first.

Input: a ServingSearch. Output: blocks of rows. Invariant: the first line says which GPUs serve all
users, or that none do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchfake.distributed.passes.loads import Steady
from torchfake.distributed.serving.limits import NO_LIMITS, Limits
from torchfake.distributed.serving.offers import MORE_GPUS, Offer, ServingSearch
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.distributed.serving.text import error_text, formats_text, lacking_text, served_text
from torchfake.errors import listed
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import number_text, price_text, seconds_text
from torchfake.inspect.show.rows import VERDICT, Block, Column, Line, as_lines, table

_NOTE = (
    "Ways that no other beats in both the time of a token and tokens of each GPU{limits}, and of "
    "each type of GPU what costs least{by_token} and the least with room for full contexts; in "
    "memory: the most users with full contexts, to those at their average length{in_time}{tight}"
    "{prices}."
)


def _columns_of(found: ServingSearch) -> tuple[Column, ...]:
    """The columns of ways to serve; times that are past their limits are named."""
    has_limits, is_filled = found.limits != NO_LIMITS, found.users is None
    of_first = "plan.steady.first_token_seconds"
    formats = {offer.plan.weights for offer in found.offers}
    of_weights = Column("weights", "plan.weights", need=4, under="weights in ")
    return (
        Column("GPUs", lambda offer: f"{offer.num_gpus} x {offer.gpu}"),
        *[of_weights] * (len(formats) > 1),
        Column("cache", "plan.server.serve.dtype_name", need=4, under="cache in "),
        Column("layout", "mesh", need=5, under="layout "),
        Column("first token", of_first, seconds_text, need=3, under="first token "),
        Column("each token", "plan.steady.seconds", seconds_text, need=2, under="each token "),
        Column("each GPU", "plan.tokens_per_second_per_gpu", "{:,.0f}/s".format, need=4),
        *[Column("users", "plan.users", "{:,}".format, need=2)] * is_filled,
        *[Column("in time", "most_users", "{:,}".format, need=2)] * (has_limits and not is_filled),
        Column("in memory", lambda offer: _most_users(offer.plan), str, need=6),
        Column("fits", "plan.verdict", emphasis=VERDICT),
        *[Column("limits", _within, need=3, under="limits ")] * has_limits,
        Column("price/hour", "hourly", price_text, need=3 if is_filled else 1),
        Column("price/1M", "price", price_text, need=1 if is_filled else 3),
    )


def _within(offer: Offer) -> str:
    """Whether a way meets the limits, perhaps, or which times are past them."""
    steady, limits = offer.plan.steady, offer.limits
    if steady is None:
        return ""
    missed, near = limits.missed_by(steady), limits.near(offer.plan, steady)
    if missed.keys() <= near.keys():
        return "perhaps" if near or limits.may_be_missed_by(offer.plan) else "met"
    return f"past: {', '.join(missed)}"


def _most_users(found: ServingPlan) -> str:
    """The most users with full contexts, and at their average length if that is another number."""
    most, average = found.most_users, found.most_users_on_average
    return f"{most:,}" if most == average else f"{most:,} to {average:,}"


@shown.register
def _(found: ServingSearch, *, depth: int | None = None) -> list[Block]:
    is_priced = any(offer.hourly is not None for offer in found.best)
    note = _NOTE.format(
        limits="" if found.fits else " (none meets the limits)",
        by_token=", by the token too," * is_priced,
        in_time="; in time: the most within the limits"
        * (found.limits != NO_LIMITS and found.users is not None),
        tight="; tight: not with full contexts"
        * any(o.plan.verdict == "tight" for o in found.best),
        prices="; prices of an hour, and of 1M tokens of answers" * is_priced,
    )
    ways = [table(found.best, _columns_of(found), note)] * bool(found.best)
    return [as_lines(_offers(found)), *ways]


def _offers(found: ServingSearch) -> Iterator[Line]:
    if not found.fits:
        most = max(offer.num_gpus for offer in found.offers)
        on = "up to " * (most > 1) + number_text(most, "GPU")
        users = number_text(found.users or 1, "user")
        asked = f"{users}{limits_text(found.limits)}{_alone(found)}"
        yield "fits", f"no way on {on} with {_formats(found.offers)} serves {asked}"
        yield "  try", [f"{change}: {_offer_text(found, each)}" for change, each in found.remedies]
        yield "  else", [*_else(found)]
        yield "nearest tried", [*_nearest(found)]
    yield from _best(found)
    yield "perhaps", [_offer_text(found, offer) for offer in found.perhaps]
    yield "serves", served_text(found.offers[0].plan)
    yield "tried", _tried(found)
    yield "not tried", found.left_out
    yield "left out", found.offers[0].plan.left_out
    if found.fits:
        yield "none on", [_unmet(found, gpu, number) for gpu, number in found.unmet.items()]


def _unmet(found: ServingSearch, gpu: str, number: int) -> str:
    """What the ways on a GPU reach, none of which meets the limits."""
    closest = min((o for o in found.offers if o.gpu == gpu), key=found.distance)
    return f"{gpu}: {number_text(number, 'way')}; nearest {_reached(found.limits, closest)}"


def _best(found: ServingSearch) -> Iterator[Line]:
    """The best of the offers that meet the limits; the one that is named first is the answer."""
    answer, fewest = found.answer, found.fewest
    cheapest, fastest = found.cheapest, found.fastest
    if answer is None or fewest is None or fastest is None:
        return
    plan = answer.plan
    average = " at the average length of their sequences" * (plan.verdict == "tight")
    length = f" with answers of {plan.server.request.answer:,} tokens"
    how = f"serves {_users_text(found)}{average}{length}{limits_text(found.limits)}"
    what = _offer_text(found, answer) + f", {plan.past}" * bool(plan.past)
    name, why = _first_for(found, answer)
    yield name, f"{what}{why}; {how}"
    yield "  error", error_text(plan)
    less = "fewer GPUs" if name == "fewest" else "cheaper" if answer.hourly else "more tokens"
    yield less, [f"{change}: {_offer_text(found, offer)}" for change, offer in found.remedies]
    yield from (("note", note) for note in plan.notes)
    yield from _notes_of_others(found, answer)
    if found.roomy is not None:
        yield "with room", f"{_offer_text(found, found.roomy)}, which holds full contexts"
    if cheapest is not None and cheapest is not answer:
        alike = _is_alike(answer, cheapest) * f", by less than the error of {_error(answer)}"
        yield "  by token", f"{_offer_text(found, cheapest)}, the cheapest by the token{alike}"
    if has_fewer := fewest.num_gpus < answer.num_gpus and found.users is not None:
        yield "fewest", _offer_text(found, fewest)
    as_good = f"within the error of {_error(answer)}" if found.users is None else "as few"
    yield as_good, [_offer_text(found, offer) for offer in found.as_good]
    if fastest is not answer and not (has_fewer and fastest is fewest):
        yield "most tokens", _offer_text(found, fastest)


def _first_for(found: ServingSearch, answer: Offer) -> tuple[str, str]:
    """The name of the first row, and for what that way is named first."""
    surely = " of what surely meets the limits" * (len(found.surest) < len(found.meeting))
    if answer.hourly is None:
        name = "fewest" if found.users is not None else "most tokens"
        return name, f"; {name}{surely}" * bool(surely)
    are_priced = all(offer.hourly is not None for offer in found.surest)
    of_priced = "" if are_priced else ", of GPUs with a price"
    by = " and by the token" * (answer is found.cheapest)
    by = "the token" if found.users is None else f"the hour{by}"
    return "cheapest", f"; least by {by}{surely}{of_priced}{_for_less(found)}"


def _users_text(found: ServingSearch) -> str:
    """The users that are asked for, or as many as there is room for."""
    if found.users is not None:
        return number_text(found.users, "user")
    in_time = " and see their tokens in time" * (found.limits != NO_LIMITS)
    return f"as many users as have room for full contexts{in_time},"


def _error(offer: Offer) -> str:
    return f"{100 * offer.throughput_error:.0f} %"


def _is_alike(first: Offer, second: Offer) -> bool:
    """Whether prices of tokens differ by less than the error of throughput."""
    ratio = (first.price or 0.0) / (second.price or 1.0)
    return bool(second.price) and ratio - 1 < first.throughput_error


def _notes_of_others(found: ServingSearch, answer: Offer) -> Iterator[Line]:
    """Notes of ways that are shown beside the answer, each with the GPU that it is of."""
    others = [*found.best, *(offer for _, offer in found.remedies)]
    notes = dict.fromkeys((offer.gpu, note) for offer in others for note in offer.plan.notes)
    known = answer.plan.notes
    yield from (("note", f"{gpu}: {note}") for gpu, note in notes if note not in known)


def _for_less(found: ServingSearch) -> str:
    """That a change to fewer bits costs less, with its price of an hour."""
    if not found.remedies:
        return ""
    change, offer = found.remedies[0]
    _, price = offer.cost
    perhaps = ", perhaps" * found.limits.may_be_missed_by(offer.plan)
    return f", with {_formats(found.offers)} ({price_text(price)} with {change}{perhaps})"


def _tried(found: ServingSearch) -> str:
    refused = f"; {found.refused} layouts do not suit the model" if found.refused else ""
    most = dict[str, int]()
    for offer in found.offers:
        most[offer.gpu] = max(most.get(offer.gpu, 0), offer.num_gpus)
    kinds = listed([f"{number} x {gpu}" for gpu, number in most.items()])
    ways = number_text(len(found.offers), "way")
    return f"{ways} on up to {kinds}, {_formats(found.offers)}{refused}"


def _formats(offers: Sequence[Offer]) -> str:
    """The formats of weights and caches of some ways."""
    formats = listed([*dict.fromkeys(offer.plan.weights for offer in offers)])
    dtypes = sorted({offer.plan.server.serve.dtype_name or "" for offer in offers})
    caches = listed([name or "the model's dtype" for name in dtypes])
    return f"weights in {formats}" + (f", caches in {caches}" if any(dtypes) else "")


def limits_text(limits: Limits) -> str:
    """The limits as text: ``, the first token within 500 ms, each token within 50 ms``."""
    found = ""
    for name, value in (("the first", limits.first_token), ("each", limits.each_token)):
        found += "" if value is None else f", {name} token within {seconds_text(value)}"
    return found


def _offer_text(found: ServingSearch, offer: Offer) -> str:
    """A way to serve, what a user of it sees, and what it yields and costs."""
    price = ""
    if offer.price is not None:
        hourly, each = price_text(offer.hourly or 0.0), price_text(offer.price)
        price = f", {hourly} an hour, {each} for a million answer tokens"
    each = " on each GPU" * (offer.num_gpus > 1)
    rate = f"{offer.plan.tokens_per_second_per_gpu:,.0f} tokens/s{each}"
    users = f", at most {number_text(offer.most_users, 'user')}" * bool(offer.most_users)
    if offer.is_filled:
        users = f", {number_text(offer.plan.users, 'user')}"
    return f"{_reached(found.limits, offer)}, {rate}{users}{price}"


def _where(offer: Offer) -> str:
    layout = "" if offer.mesh == "1 GPU" else f" ({offer.mesh})"
    return f"{offer.num_gpus} x {offer.gpu}{formats_text(offer.plan)}{layout}"


def _seen(limits: Limits, found: ServingPlan, steady: Steady) -> str:
    """What a user sees; of a time that is past its limit, or nearer to it than the error, how far
    it is from it. "perhaps" is said where no time is past its limit by more than the error.
    """
    shares, near = limits.shares(steady), limits.near(found, steady)
    may_hold = limits.missed_by(steady).keys() <= near.keys()
    times = {"first token": steady.first_token_seconds, "each token": steady.seconds}
    texts = []
    for name, seconds in times.items():
        text = f"{name} {seconds_text(seconds)}"
        if name in near:
            of_others = " of other GPUs" * (found.errors is None)
            error = f"less than the error of {100 * near[name]:.0f} %{of_others}"
            text += f" ({'perhaps: ' * may_hold}{past_text(shares[name])}, {error})"
        elif shares.get(name, 0) > 1:
            text += f" ({past_text(shares[name])})"
        texts.append(text)
    return ", ".join(texts)


def past_text(share: float) -> str:
    """How far a time is from its limit, of which it is so many times."""
    if share >= 2:
        return f"{share:.1f} times its limit"
    return f"{max(100 * abs(share - 1), 1):.0f} % {'past' if share > 1 else 'below'} its limit"


def _reached(limits: Limits, offer: Offer) -> str:
    """What a way reaches: its times, or how many users of those that are asked for."""
    plan = offer.plan
    if plan.steady is None or not plan.fits:
        return f"{_where(offer)}: {lacking_text(plan)}"
    tight = ", tight" * (plan.verdict == "tight")
    more = ", without the time of expanding the cache" * plan.expands_cache
    return f"{_where(offer)}{tight}: {_seen(limits, plan, plan.steady)}{more}"


def _else(found: ServingSearch) -> Iterator[str]:
    """That no change helps either, and what comes nearest with one."""
    if found.almost is not None:
        formats = _formats([offer for _, offer in found.failed])
        yield f"nor does one on up to {MORE_GPUS} times the GPUs, with {formats}"
        change, offer = found.almost
        yield f"nearest, with {change}: {_reached(found.limits, offer)}"


def _nearest(found: ServingSearch) -> Iterator[str]:
    """The way that comes nearest for all users, and the one that serves most users within the
    limits.
    """
    if found.nearest is None or found.closest.plan.fits:
        yield _reached(found.limits, found.closest)
    if found.nearest is not None:
        users, offer = found.nearest
        seen = _seen(found.limits, offer.plan, offer.plan.with_users(users))
        yield f"{number_text(users, 'user')} on {_where(offer)}: {seen}"


def _alone(found: ServingSearch) -> str:
    """What even one user sees, where no way serves any within the limits."""
    alone = [(x.plan, x.plan.by_users[0][1]) for x in found.offers if x.plan.by_users]
    if found.nearest is not None or not alone:
        return ""
    plan, least = min(alone, key=lambda each: max(found.limits.missed_by(each[1]).values()))
    return f"; even one user is past the limits: {_seen(found.limits, plan, least)}"
