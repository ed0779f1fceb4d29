"""A served model, and a search for a server, as rows: the answer first.

Input: a ServingPlan or a ServingSearch. Output: blocks of rows. Invariant: the first line says
whether all users fit, or which GPUs serve them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchfake.distributed.parallelize.mesh_axes import larger
from torchfake.distributed.passes.loads import Steady
from torchfake.distributed.serving.offers import Limits, Offer, ServingSearch
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text, duration_text, number_text, seconds_text
from torchfake.inspect.show.rows import VERDICT, Block, Column, Line, as_lines, table

BOUND_BY = {
    "weights": "reading weights",
    "compute": "arithmetic",
    "cache": "reading the cache",
    "activations": "elementwise operators",
    "communication": "communication",
    "kernels": "starting kernels",
    "host": "the host",
}
"""What takes most of a pass, by the name of its part."""

_NOTE = (
    "Ways that no other beats in both the time of a token and tokens of each GPU, and the fewest "
    "GPUs of each type{limits}; most users: with full contexts, to those at their average "
    "length{prices}."
)

_NOTHING_ELSE = (
    "fewer bits alone do not meet them either, nor up to four times the GPUs alone; both together "
    "were not tried"
)

_WITH_BARS = ("weights", "kv cache", "activations")


@shown.register
def _(found: ServingPlan, *, depth: int | None = None) -> list[Block]:
    sizes = _sizes(found)
    shares = {name: sizes[name] / found.memory.total for name in _WITH_BARS}
    lines = as_lines([*_answer(found), *_layout(found), *_memory(found), *_left_out(found)], shares)
    return [lines, *[table(found.by_users, _columns(found))] * bool(found.by_users)]


def _columns(found: ServingPlan) -> tuple[Column, ...]:
    """The columns of numbers of users, each with what each of them sees."""
    replicas = found.server.replicas
    each_gpu = Column("each GPU", lambda row: found.per_gpu(row[1]), "{:,.0f}/s".format, need=2)
    return (
        Column("users", lambda row: f"{row[0]:,}"),
        Column("first token", lambda row: row[1].first_token_seconds, seconds_text),
        Column("each token", lambda row: row[1].seconds, seconds_text),
        Column("tokens/s", lambda row: row[1].tokens_per_second * replicas, "{:,.0f}".format),
        Column(
            "each user", lambda row: row[1].tokens_per_second_per_user, "{:,.1f}/s".format, need=1
        ),
        *[each_gpu] * (found.num_gpus > 1),
        Column("bound by", lambda row: BOUND_BY[row[1].parts.bound_by], need=3),
    )


def _answer(found: ServingPlan) -> Iterator[Line]:
    past = f", {'but' if found.fits else 'and'} {found.past}" if found.past else ""
    yield "fits", f"{found.verdict}{past}: {_fitting(found)}"
    yield "  try", found.remedy
    yield "serves", _served(found, _formats(found))
    steady = found.steady
    if steady is None:
        return
    alone = seconds_text(found.first_token_seconds)
    loaded = seconds_text(steady.first_token_seconds)
    users = number_text(steady.users * found.server.replicas, "user")
    if found.queue_seconds:
        waits = f"; {duration_text(found.queue_seconds)} more for those that wait for memory"
    else:
        waits = ""
    yield "first token", f"{alone} alone, {loaded} with {users}{waits}"
    each = f"{seconds_text(steady.seconds)}, {steady.tokens_per_second_per_user:,.1f} tokens/s"
    yield "each token", f"{each} for each user; bound by {BOUND_BY[steady.parts.bound_by]}"
    per_gpu = f", {found.tokens_per_second_per_gpu:,.0f} tokens/s on each GPU"
    per_gpu *= found.num_gpus > 1
    yield "throughput", f"{found.tokens_per_second:,.0f} tokens/s{per_gpu}"
    yield "  error", _error(found)


_QUANTITIES = {
    "first_token_seconds": "first token",
    "seconds_per_token": "each token",
    "tokens_per_second": "throughput",
}


def _error(found: ServingPlan) -> str:
    if found.errors is None:
        return "not known: such a model on this GPU was not compared (docs/serving.md)"
    said = ", ".join(f"{_QUANTITIES[k]} {100 * share:.0f} %" for k, share in found.errors.items())
    return f"{said}: nine in ten held-out published figures (docs/serving.md)"


def _fitting(found: ServingPlan) -> str:
    server = found.server
    gpus, context = found.num_gpus, server.serve.context
    where = f"on {gpus} {server.machine.gpu.name}"
    if found.memory.cache <= 0:
        return f"the model alone lacks {bytes_text(-found.memory.cache)} on each GPU, {where}"
    most, average = f"{found.most_users:,}", f"{found.most_users_on_average:,}"
    if found.verdict == "yes":
        users = f"{number_text(found.users, 'user')} x {context:,} tokens"
        lengths = f" with full contexts, {average} at their average length"
        return f"{users} {where}; at most {most}{lengths * (average != most)}"
    full = f"{most} with full contexts of {context:,}, {where}"
    if found.verdict == "tight":
        return f"{found.users:,} users at the average length of their sequences, {full}"
    return f"{average} of {found.users:,} users at their average length, others wait; {full}"


def _served(found: ServingPlan, formats: str = "") -> str:
    request = found.server.request
    lengths = f"prompts of {request.prompt:,}, answers of {request.answer:,} tokens"
    return f"{found.class_name}{formats}; {lengths}"


def _formats(found: ServingPlan) -> str:
    """`` in bf16``, and the dtype of the cache if it is not the model's."""
    dtype = found.server.serve.dtype_name
    return f" in {found.weights}" + (f", cache in {dtype}" if dtype else "")


def _layout(found: ServingPlan) -> Iterator[Line]:
    sizes = larger(found.server.axes.sizes)
    if sizes:
        yield "layout", " x ".join(f"{name} {size}" for name, size in sizes.items())


def _memory(found: ServingPlan) -> Iterator[Line]:
    memory = found.memory
    each = "each" if found.num_gpus > 1 else "the"
    yield "memory", f"{bytes_text(memory.total)} of {each} GPU"
    for name, size in _sizes(found).items():
        if size:
            yield f"  {name}", bytes_text(size) + _blocks(found, name)


def _sizes(found: ServingPlan) -> dict[str, int]:
    memory = found.memory
    return {
        "weights": memory.weights,
        "kv cache": max(memory.cache, 0),
        "activations": memory.activations,
        "CUDA, NCCL": memory.context,
        "CUDA graphs": memory.graphs,
        "unused": memory.unused,
    }


def _blocks(found: ServingPlan, name: str) -> str:
    if name != "kv cache":
        return ""
    taken = found.server.cache_bytes(found.users_of_replica)
    blocks = f"in blocks of {found.server.serve.block_size} tokens"
    return f" {blocks}; {bytes_text(taken)} for the users' full contexts"


def _left_out(found: ServingPlan) -> Iterator[Line]:
    yield "left out", found.left_out
    yield from (("note", note) for note in found.notes)


# A search.


def _columns_of(found: ServingSearch) -> tuple[Column, ...]:
    """The columns of ways to serve; times that are past their limits are named."""

    def missed(offer: Offer) -> str:
        steady = offer.plan.steady
        return "" if steady is None else ", ".join(found.limits.missed_by(steady))

    return (
        Column("GPUs", lambda offer: f"{offer.num_gpus} x {offer.gpu}"),
        Column("weights", "plan.weights", need=2, under="weights in "),
        Column("cache", "plan.server.serve.dtype_name", need=2, under="cache in "),
        Column("layout", "mesh", need=3, under="layout "),
        Column("first token", "plan.steady.first_token_seconds", seconds_text),
        Column("each token", "plan.steady.seconds", seconds_text),
        Column("each GPU", "plan.tokens_per_second_per_gpu", "{:,.0f}/s".format, need=2),
        Column("most users", lambda offer: _most_users(offer.plan), str, need=4),
        Column("fits", "plan.verdict", emphasis=VERDICT, need=1),
        Column("misses", missed, need=1, under="misses "),
        Column("price/hour", "hourly", "{:,.2f}".format),
        Column("price/1M", "price", "{:,.2f}".format, need=5),
    )


def _most_users(found: ServingPlan) -> str:
    """The most users with full contexts, and at their average length if that is another number."""
    most, average = found.most_users, found.most_users_on_average
    return f"{most:,}" if most == average else f"{most:,} to {average:,}"


@shown.register
def _(found: ServingSearch, *, depth: int | None = None) -> list[Block]:
    is_priced = any(offer.hourly is not None for offer in found.best)
    note = _NOTE.format(
        limits="" if found.fits else ", none of which meets the limits",
        prices="; prices of an hour, and of 1M tokens of answers" * is_priced,
    )
    ways = [table(found.best, _columns_of(found), note)] * bool(found.best)
    return [as_lines(_offers(found)), *ways]


def _offers(found: ServingSearch) -> Iterator[Line]:
    if not found.fits:
        ways = number_text(len(found.offers), "way")
        asked = f"{number_text(found.users, 'user')}{limits_text(found.limits)}"
        yield "fits", f"no: none of {ways} serves {asked}{_at_best(found.reachable)}"
        yield from _nearest(found)
        changes = [f"{change}: {_offer_text(offer)}" for change, offer in found.remedies]
        yield "  try", changes
        if not changes:
            yield "  else", _NOTHING_ELSE
    yield from _best(found)
    if found.fits and found.remedies:
        ((change, offer),) = found.remedies
        yield "fewer bits", f"{change}: {_offer_text(offer)}"
    if found.perhaps is not None:
        text = f"{_offer_text(found.perhaps)}, past a limit by less than the error"
        yield "perhaps", text
    yield "serves", _served(found.offers[0].plan)
    yield "tried", _tried(found)
    yield "not tried", found.left_out
    if found.fits:
        yield "none on", [_unmet(found, gpu, number) for gpu, number in found.unmet.items()]


def _unmet(found: ServingSearch, gpu: str, number: int) -> str:
    """What the ways on a GPU reach, none of which meets the limits."""
    reached = [offer for offer in found.reachable if offer.gpu == gpu]
    return f"{gpu}: {number_text(number, 'way')}{_at_best(reached)}"


def _at_best(offers: Sequence[Offer]) -> str:
    """The shortest times of some ways that hold all users; or that none does."""
    times = [offer.plan.steady for offer in offers if offer.plan.steady and offer.plan.fits]
    if not times:
        return "; their memory does not hold the users"
    first = seconds_text(min(steady.first_token_seconds for steady in times))
    each = seconds_text(min(steady.seconds for steady in times))
    return f"; at best first token {first}, each token {each}"


def _best(found: ServingSearch) -> Iterator[Line]:
    """The best of the offers that meet the limits; the one that is named first is the answer."""
    answer, fewest = found.answer, found.fewest
    cheapest, fastest = found.cheapest, found.fastest
    if answer is None or fewest is None or fastest is None:
        return
    plan = answer.plan
    average = " at the average length of their sequences" * (plan.verdict == "tight")
    past = f", {plan.past}" * bool(plan.past)
    users, limits = number_text(found.users, "user"), limits_text(found.limits)
    near = ", perhaps: nearer to a limit than the error" * found.limits.may_be_missed_by(plan)
    how = f"serves {users}{average}{limits}{near}{past}"
    if found.least_hourly is None:
        yield "fewest", f"{_offer_text(answer)}; {how}"
    else:
        are_priced = all(offer.hourly is not None for offer in found.meeting)
        by = "by the hour" + " and by the token" * (answer is cheapest)
        of_priced = "" if are_priced else ", of GPUs with a price"
        yield "cheapest", f"{_offer_text(answer)}; {by}{of_priced}; {how}"
    yield "  error", _error(plan)
    yield from (("note", note) for note in plan.notes)
    if cheapest is not None and cheapest is not answer:
        yield "  by token", f"{_offer_text(cheapest)}, the cheapest by the token"
    if fewest is not answer:
        yield "fewest", _offer_text(fewest)
    if fastest is not answer and fastest is not fewest:
        yield "fastest", f"{_offer_text(fastest)}, the most on each GPU"


def _tried(found: ServingSearch) -> str:
    refused = f"; {found.refused} layouts do not suit the model" if found.refused else ""
    kinds = ", ".join(dict.fromkeys(offer.gpu for offer in found.offers))
    formats = ", ".join(dict.fromkeys(offer.plan.weights for offer in found.offers))
    dtypes = dict.fromkeys(offer.plan.server.serve.dtype_name for offer in found.offers)
    caches = ", ".join(name or "the model's dtype" for name in dtypes)
    caches = f", caches in {caches}" if any(dtypes) else ""
    ways = number_text(len(found.offers), "way")
    return f"{ways} on {kinds}, weights in {formats}{caches}{refused}"


def limits_text(limits: Limits) -> str:
    """The limits as text: ``, the first token within 500 ms, each token within 50 ms``."""
    found = ""
    for name, value in (("the first", limits.first_token), ("each", limits.each_token)):
        found += "" if value is None else f", {name} token within {seconds_text(value)}"
    return found


def _offer_text(offer: Offer) -> str:
    steady = offer.plan.steady
    assert steady is not None
    price = ""
    if offer.price is not None:
        price = f", {offer.hourly:,.2f} an hour, {offer.price:,.2f} for a million tokens"
    each = " on each GPU" * (offer.num_gpus > 1)
    rate = f"{offer.plan.tokens_per_second_per_gpu:,.0f} tokens/s{each}"
    return f"{_where(offer)}: {_seen(steady)}, {rate}{price}"


def _where(offer: Offer) -> str:
    layout = "" if offer.mesh == "1 GPU" else f" ({offer.mesh})"
    return f"{offer.num_gpus} x {offer.gpu}{_formats(offer.plan)}{layout}"


def _seen(steady: Steady) -> str:
    """What a user sees."""
    first, each = seconds_text(steady.first_token_seconds), seconds_text(steady.seconds)
    return f"first token {first}, each token {each}"


def _nearest(found: ServingSearch) -> Iterator[Line]:
    """What comes nearest: the way that serves most users within the limits."""
    if found.nearest is None:
        held = any(offer.plan.steady is not None for offer in found.offers)
        why = "these times are met for no user" if held else "the weights fit in none of them"
        yield "nearest", f"none: {why}"
        return
    users, offer = found.nearest
    seen = _seen(dict(offer.plan.by_users)[users])
    yield "nearest", f"{number_text(users, 'user')} on {_where(offer)}: {seen}"
