"""The record of a search for a server: ways to serve, and which of them are best.

Input: the plans of a search. Output: a :class:`ServingSearch`. Invariant: whatever it names is one
of its offers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchfake.distributed.parallelize.mesh_axes import larger, mesh_text
from torchfake.distributed.serving.limits import Limits
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.inspect.records.record import Record

MORE_GPUS = 4
"""Times the GPUs, with which a search that finds nothing tries again."""

_ANY = (True, math.inf)
"""More than any offer costs."""

_ALIKE = 1.05
"""Ways of which one has fewer times the tokens of the other are not both shown for that reason."""


@dataclass(frozen=True)
class Offer:
    """A way to serve."""

    gpu: str  # the name of the profile
    plan: ServingPlan
    limits: Limits
    price: float | None  # of a million tokens of answers, in the unit of the given prices
    hourly: float | None = None  # of an hour of all its GPUs
    is_filled: bool = False  # its users are as many as it serves, not a number that was given

    @property
    def cost(self) -> tuple[bool, float]:
        """The price of an hour, or the number of GPUs of an offer without prices, which comes last.
        Where it serves as many users as it can, the price of a token, or the GPUs for one a second.
        """
        price, gpus = self.hourly, float(self.num_gpus)
        if self.is_filled:
            price, gpus = self.price, 1 / (self.plan.tokens_per_second_per_gpu or 1e-9)
        return price is None, gpus if price is None else price

    def costs_as_much_as(self, other: Offer) -> bool:
        """Whether it costs as much as one that costs no more; tokens, within their error."""
        (is_free, own), (other_is_free, least) = self.cost, other.cost
        error = other.throughput_error * self.is_filled
        return is_free == other_is_free and own <= least * (1 + error)

    @property
    def throughput_error(self) -> float:
        """The error of its tokens per second, as a share."""
        return self.plan.least_errors["tokens_per_second"]

    @property
    def meets(self) -> bool:
        """Whether it meets the limits."""
        return self.limits.met_by(self.plan)

    @cached_property
    def most_users(self) -> int:
        """The most users that it serves within the limits."""
        return self.limits.most_users(self.plan)

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.plan.num_gpus

    @property
    def mesh(self) -> str:
        """The axes of the mesh that have more than one rank."""
        return mesh_text(larger(self.plan.server.axes.sizes)) or "1 GPU"

    def to_dict(self) -> dict[str, Any]:
        """The offer as a dict for JSON."""
        return {
            "gpu": self.gpu,
            "gpus": self.num_gpus,
            "meets": self.meets,
            "most_users": self.most_users,
            "price": self.price,
            "hourly": self.hourly,
            "plan": self.plan.to_dict(),
        }


@dataclass(frozen=True, repr=False)
class ServingSearch(Record):
    """Ways to serve a model to a number of users."""

    target: str
    users: int | None  # None: as many as each way serves
    limits: Limits
    offers: tuple[Offer, ...]  # all that were tried and can be laid out
    refused: int  # layouts that the model does not support
    left_out: tuple[str, ...] = ()  # formats and GPUs that were asked for and not tried, and why
    remedies: tuple[tuple[str, Offer], ...] = ()
    """If none meets the limits: changes with which one does, each with the fewest GPUs, or with
    prices the cheapest; else the change to fewer bits with which the fewest GPUs do, or with prices
    the cheapest, and the first with which fewer or cheaper ones do, if that is another one."""
    failed: tuple[tuple[str, Offer], ...] = ()
    """If there is no remedy either: changes that were tried, each with what it was tried on."""

    @property
    def meeting(self) -> list[Offer]:
        """The offers that meet the limits."""
        return [offer for offer in self.offers if offer.meets]

    @property
    def reachable(self) -> list[Offer]:
        """The offers that hold all users, whatever the limits; if none does, all that hold some."""
        serving = [offer for offer in self.offers if offer.plan.steady is not None]
        return [offer for offer in serving if offer.plan.fits] or serving

    @property
    def fits(self) -> bool:
        """Whether any offer meets the limits."""
        return bool(self.meeting)

    @property
    def unmet(self) -> dict[str, int]:
        """The types of GPUs on which no way meets the limits, each with its number of ways."""
        met = {offer.gpu for offer in self.meeting}
        return dict(Counter(offer.gpu for offer in self.offers if offer.gpu not in met))

    @cached_property
    def surest(self) -> list[Offer]:
        """The offers that meet the limits by more than the error of such times; all that meet them
        if none does, or if each serves as many users as it can, which takes times to their limits.
        """
        meeting = self.meeting
        if self.users is None:
            return meeting
        return [o for o in meeting if not self.limits.may_be_missed_by(o.plan)] or meeting

    @property
    def fewest(self) -> Offer | None:
        """Of the surest offers the one with the fewest GPUs, of these the one with most tokens per
        second.
        """
        return min(self.surest, key=by_fewest, default=None)

    @property
    def answer(self) -> Offer | None:
        """Of the surest offers the one that is named first: with prices the one with the lowest
        price of an hour, else the one with the fewest GPUs. Where each serves as many users as it
        can, the one with the lowest price of a token, or most tokens.
        """
        return min(self.surest, key=by_cost, default=None)

    @property
    def roomy(self) -> Offer | None:
        """If the answer has no room for full contexts: the least of the surest offers that has."""
        is_roomy = self.answer is None or self.answer.plan.verdict == "yes"
        roomy = (o for o in self.surest if o.plan.verdict == "yes" and not is_roomy)
        return min(roomy, key=by_cost, default=None)

    @property
    def perhaps(self) -> list[Offer]:
        """Of each type of GPU the offers that are nearer to a limit than the error of such times
        and cost least: one that meets it, if that costs less than the surest ones of the type, and
        one that misses it, if that costs less than all that meet it. Of a type without surer ones,
        what costs less than the answer.
        """
        known, found = {id(offer) for offer in self.surest}, list[Offer]()
        near = [o for o in self.offers if id(o) not in known and self.limits.may_hold_for(o.plan)]
        sides = [o for o in near if o.meets], [o for o in near if not o.meets]
        best = [] if self.answer is None else [self.answer]
        for kind in dict.fromkeys(offer.gpu for offer in near):
            surer = [offer for offer in self.surest if offer.gpu == kind]
            for side in sides:
                least = min((offer.cost for offer in surer or best), default=_ANY)
                cheaper = [offer for offer in side if offer.gpu == kind and offer.cost < least]
                found += _first(cheaper, by_cost)
                surer += cheaper
        return sorted(found, key=by_cost)

    @property
    def fastest(self) -> Offer | None:
        """Of the surest offers the one with most tokens per second on each GPU."""
        return max(self.surest, key=_per_gpu, default=None)

    @property
    def nearest(self) -> tuple[int, Offer] | None:
        """The most users of whom each sees tokens within the limits, and the way that serves them;
        None if there is none.
        """
        most = max(self.offers, key=lambda offer: (offer.most_users, -offer.num_gpus))
        return (most.most_users, most) if most.most_users else None

    @property
    def closest(self) -> Offer:
        """The offer that comes closest to what is asked for all users."""
        return min(self.offers, key=self.distance)

    @property
    def almost(self) -> tuple[str, Offer] | None:
        """If there is no remedy either: the change that comes closest, with that offer."""
        return min(self.failed, key=lambda each: self.distance(each[1]), default=None)

    def distance(self, offer: Offer) -> tuple[float, ...]:
        """How far an offer is from what is asked: bytes that the weights lack, users that wait for
        memory, how many times its limit the longest time is; of equal ones, its number of GPUs.
        """
        plan = offer.plan
        waiting = max(plan.users - plan.most_users_on_average, 0)
        missed = self.limits.missed_by(plan.steady) if plan.steady else {}
        past = max(missed.values(), default=1.0)
        return max(-plan.memory.cache, 0), waiting, past, offer.num_gpus

    @property
    def cheapest(self) -> Offer | None:
        """Of the surest offers the one with the lowest price of a million tokens; None without
        prices.
        """
        priced = [offer for offer in self.surest if offer.price is not None]
        return min(priced, key=_by_price, default=None)

    @property
    def as_good(self) -> list[Offer]:
        """The surest offers of other types that cost as much as the answer; none if that is the
        price of an hour.
        """
        answer, found = self.answer, dict[str, Offer]()
        if answer is None or (answer.hourly is not None and not answer.is_filled):
            return []
        for offer in sorted(self.surest, key=by_cost):
            found.setdefault(offer.gpu, offer)
        return [o for o in found.values() if o is not answer and o.costs_as_much_as(answer)]

    @property
    def best(self) -> list[Offer]:
        """Of the offers that meet the limits, or if none does, of all: those that no other one,
        which is not slower, beats in tokens per second of each GPU (Pareto; what differs by less
        than :data:`_ALIKE` is alike); of each type of GPU the one that costs least, by the token
        too, and the least that has room for full contexts; those that are named. By their time.
        """
        among, found = self.meeting or self.reachable, list[Offer]()
        for offer in sorted(among, key=lambda offer: (_seconds(offer), -_per_gpu(offer))):
            if not found or _per_gpu(offer) > _ALIKE * _per_gpu(found[-1]):
                found.append(offer)
        for kind in dict.fromkeys(offer.gpu for offer in among):
            of_kind = [offer for offer in among if offer.gpu == kind]
            roomy = [offer for offer in of_kind if offer.plan.verdict == "yes"]
            priced = [offer for offer in of_kind if offer.price is not None]
            found += [*_first(of_kind, by_cost), *_first(priced, _by_price)]
            found += _first(roomy, by_cost)
        named = self.answer, self.fastest, self.cheapest
        found += [offer for offer in named if offer is not None]
        return sorted({id(offer): offer for offer in found}.values(), key=_seconds)

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON."""
        named = {
            "answer": self.answer,
            "fewest_gpus": self.fewest,
            "most_tokens": self.fastest,
            "cheapest_by_token": self.cheapest,
            "roomy": self.roomy,
        }
        return {
            "target": self.target,
            "users": self.users,
            "fits": self.fits,
            "limits": dict(self.limits.__dict__),
            "refused": self.refused,
            "left_out": list(self.left_out),
            "unmet": self.unmet,
            **{key: None if each is None else each.to_dict() for key, each in named.items()},
            "perhaps": [offer.to_dict() for offer in self.perhaps],
            "as_good": [offer.to_dict() for offer in self.as_good],
            "best": [offer.to_dict() for offer in self.best],
            "remedies": [{"change": each, **offer.to_dict()} for each, offer in self.remedies],
            "almost": self.almost and {"change": self.almost[0], **self.almost[1].to_dict()},
            "closest": self.closest.to_dict(),
            "num_tried": len(self.offers),
        }


def by_cost(offer: Offer) -> tuple[bool, float, int, float]:
    """The order of offers by their cost, of equal ones by what they lose, then by their speed."""
    speed = -_per_gpu(offer) if offer.hourly is None else _seconds(offer)
    return *offer.cost, -offer.plan.num_bits, speed


def by_fewest(offer: Offer) -> tuple[int, int, float]:
    """The order of offers by their numbers of GPUs, of equal ones by the bits of weights and cache,
    then by tokens per second.
    """
    return offer.num_gpus, -offer.plan.num_bits, -_per_gpu(offer)


def _first(offers: list[Offer], order: Callable[[Offer], Any]) -> list[Offer]:
    """The first of some offers in an order, if there is one."""
    return sorted(offers, key=order)[:1]


def _by_price(offer: Offer) -> float:
    return offer.price or math.inf


def _per_gpu(offer: Offer) -> float:
    return offer.plan.tokens_per_second_per_gpu or 0.0


def _seconds(offer: Offer) -> float:
    return 0.0 if offer.plan.steady is None else offer.plan.steady.seconds
