"""The record of a search for a server: ways to serve, and which of them are best.

Input: the plans of a search. Output: a :class:`ServingSearch`. Invariant: whatever it names is one
of its offers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchfake.distributed.parallelize.mesh_axes import larger, mesh_text
from torchfake.distributed.passes.loads import Steady
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.inspect.records.record import Record

TIMES = {"first_token_seconds": "first token", "seconds_per_token": "each token"}
"""What times are called, by the names that their errors have in a plan."""


MORE_GPUS = 4
"""Times the GPUs, with which a search that finds nothing tries again."""


@dataclass(frozen=True)
class Limits:
    """What users are to see, in seconds; None: no limit."""

    first_token: float | None = None
    each_token: float | None = None

    def met_by(self, found: ServingPlan) -> bool:
        """Whether no user waits for memory, and all see their tokens in time."""
        return found.steady is not None and found.fits and self.hold_for(found.steady)

    def hold_for(self, steady: Steady) -> bool:
        """Whether users see their tokens in time."""
        return all(seconds <= limit for _, seconds, limit in self._compared(steady))

    def may_hold_for(self, found: ServingPlan) -> bool:
        """Whether no user waits for memory, and no time is past its limit by more than the error
        that is known of such times.
        """
        steady = found.steady
        return steady is not None and found.fits and (
            self.missed_by(steady).keys() <= self.near(found, steady).keys()
        )  # fmt: skip

    def may_be_missed_by(self, found: ServingPlan) -> bool:
        """Whether a time that meets its limit is nearer to it than the error."""
        steady = found.steady
        return steady is not None and bool(
            self.near(found, steady).keys() - self.missed_by(steady).keys()
        )

    def most_users(self, found: ServingPlan) -> int:
        """The most users who see their tokens in time, none of whom waits for memory; 0 if even one
        is too many. More users wait for longer.
        """
        server = found.server
        few, many = 0, found.most_users_on_average // server.replicas
        steps = [1, found.users_of_replica, many]  # where the limit often is, which saves passes
        while few < many:
            number = next((n for n in steps if few < n <= many), (few + many + 1) // 2)
            steps = [n for n in steps if n > number]
            if self.hold_for(server.with_users(number)):
                few = number
            else:
                many = number - 1
        return few * server.replicas

    def shares(self, steady: Steady) -> dict[str, float]:
        """The times that have limits, each with how many times the limit it is."""
        return {TIMES[name]: seconds / limit for name, seconds, limit in self._compared(steady)}

    def missed_by(self, steady: Steady) -> dict[str, float]:
        """The times that are past their limits, each with how many times the limit it is."""
        return {name: share for name, share in self.shares(steady).items() if share > 1}

    def near(self, found: ServingPlan, steady: Steady) -> dict[str, float]:
        """The times of a plan that are nearer to their limits, on either side, than the error that
        is known of such times, each with that error.
        """
        errors = {name: (found.errors or {}).get(name, 0.0) for name in TIMES}
        return {
            TIMES[name]: errors[name]
            for name, seconds, limit in self._compared(steady)
            if abs(seconds / limit - 1) < errors[name]
        }

    def _compared(self, steady: Steady) -> Iterator[tuple[str, float, float]]:
        """The name of a time, as in the errors of a plan, its seconds and their limit."""
        if self.first_token is not None:
            yield "first_token_seconds", steady.first_token_seconds, self.first_token
        if self.each_token is not None:
            yield "seconds_per_token", steady.seconds, self.each_token


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Offer:
    """A way to serve."""

    gpu: str  # the name of the profile
    plan: ServingPlan
    limits: Limits
    price: float | None  # of a million tokens of answers, in the unit of the given prices
    hourly: float | None = None  # of an hour of all its GPUs

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
    users: int
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

    @property
    def fewest(self) -> Offer | None:
        """The offer with the fewest GPUs, of these the one with most tokens per second."""
        return min(self.meeting, key=by_fewest, default=None)

    @property
    def answer(self) -> Offer | None:
        """The offer that is named first: with prices the one with the lowest price of an hour, else
        the one with the fewest GPUs.
        """
        return self.least_hourly or self.fewest

    @property
    def perhaps(self) -> list[Offer]:
        """Of each type of GPU the offer that misses a limit by less than the error of such times
        and costs least, if it costs less than those of the type that meet the limits; of a type of
        which none does, if it costs less than the answer.
        """
        near = [o for o in self.offers if not o.meets and self.limits.may_hold_for(o.plan)]
        best, found = [] if self.answer is None else [self.answer], list[Offer]()
        for kind in dict.fromkeys(offer.gpu for offer in near):
            least = min((offer for offer in near if offer.gpu == kind), key=by_cost)
            surer = [offer for offer in self.meeting if offer.gpu == kind] or best
            found += [least] if all(cost(least) < cost(offer) for offer in surer) else []
        return sorted(found, key=by_cost)

    @property
    def fastest(self) -> Offer | None:
        """The offer with most tokens per second on each GPU."""
        return max(self.meeting, key=_per_gpu, default=None)

    @property
    def least_hourly(self) -> Offer | None:
        """The offer with the lowest price of an hour; None without prices."""
        priced = [offer for offer in self.meeting if offer.hourly is not None]
        return min(priced, key=by_cost, default=None)

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
        waiting = max(self.users - plan.most_users_on_average, 0)
        missed = self.limits.missed_by(plan.steady) if plan.steady else {}
        past = max(missed.values(), default=1.0)
        return max(-plan.memory.cache, 0), waiting, past, offer.num_gpus

    @property
    def cheapest(self) -> Offer | None:
        """The offer with the lowest price of a million tokens; None without prices."""
        priced = [offer for offer in self.meeting if offer.price is not None]
        return min(priced, key=lambda offer: offer.price or 0.0, default=None)

    @property
    def as_few(self) -> list[Offer]:
        """Without prices, the offers of other types with as few GPUs as the answer."""
        answer, found = self.answer, dict[str, Offer]()
        if answer is None or answer.hourly is not None:
            return []
        for offer in sorted(self.meeting, key=by_fewest):
            found.setdefault(offer.gpu, offer)
        return [o for o in found.values() if o.num_gpus == answer.num_gpus and o is not answer]

    @property
    def best(self) -> list[Offer]:
        """The offers that no other one beats both in tokens per second of each GPU and in the time
        of a token (Pareto), the one with the fewest GPUs of each type, and the cheapest, by the
        time of a token; of those that meet the limits, or if none does, of all.
        """
        found: list[Offer] = []
        among = self.meeting or self.reachable
        for offer in sorted(among, key=lambda offer: (_seconds(offer), -_per_gpu(offer))):
            if not found or _per_gpu(offer) > _per_gpu(found[-1]):
                found.append(offer)
        for kind in dict.fromkeys(offer.gpu for offer in among):
            least = min((o for o in among if o.gpu == kind), key=by_fewest)
            found += [least] if least not in found else []
        for named in (self.answer, self.cheapest):
            found += [named] if named is not None and named not in found else []
        return sorted(found, key=_seconds)

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON."""
        named = {"fewest": self.fewest, "fastest": self.fastest, "cheapest": self.cheapest}
        named["least_hourly"] = self.least_hourly
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
            "as_few": [offer.to_dict() for offer in self.as_few],
            "best": [offer.to_dict() for offer in self.best],
            "remedies": [{"change": each, **offer.to_dict()} for each, offer in self.remedies],
            "almost": self.almost and {"change": self.almost[0], **self.almost[1].to_dict()},
            "closest": self.closest.to_dict(),
            "num_tried": len(self.offers),
        }


def cost(offer: Offer) -> tuple[bool, float]:
    """The price of an hour, or the number of GPUs of those without prices, which come last."""
    return offer.hourly is None, offer.num_gpus if offer.hourly is None else offer.hourly


def by_cost(offer: Offer) -> tuple[bool, float, int, float]:
    """The order of offers by their cost, of equal ones by what they lose, then by their speed."""
    speed = -_per_gpu(offer) if offer.hourly is None else _seconds(offer)
    return *cost(offer), -offer.plan.num_bits, speed


def by_fewest(offer: Offer) -> tuple[int, int, float]:
    """The order of offers by their numbers of GPUs, of equal ones by the bits of weights and cache,
    then by tokens per second.
    """
    return offer.num_gpus, -offer.plan.num_bits, -_per_gpu(offer)


def _per_gpu(offer: Offer) -> float:
    return offer.plan.tokens_per_second_per_gpu or 0.0


def _seconds(offer: Offer) -> float:
    return 0.0 if offer.plan.steady is None else offer.plan.steady.seconds
