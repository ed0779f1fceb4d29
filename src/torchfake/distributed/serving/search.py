"""The public function ``search_servers``: GPUs, layouts and formats that serve a number of users.

Input: a TARGET, a number of users, limits of times, kinds of GPUs, prices. Output: a
:class:`ServingSearch`. Invariant: every row is the :class:`ServingPlan` of its layout; GPUs of one
compute capability share the run of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchfake._core.arguments import check_mapping, is_number_above_0, is_whole_number
from torchfake._core.gpu_profiles import CudaProfile, named_profile, named_profiles
from torchfake._progress import count, progress
from torchfake.distributed.parallelize.mesh_axes import larger, mesh_text
from torchfake.distributed.passes.formats import format_named, has_kernels
from torchfake.distributed.passes.loads import Steady
from torchfake.distributed.serving.serve import Question, question_of, serve
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.errors import InputsError, did_you_mean
from torchfake.inspect.records.record import Record
from torchfake.inspect.timing.collectives import GPUS_PER_NODE
from torchfake.inspect.timing.hardware import hardware_of

USUAL_GPUS = ("l40s-48gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb")
"""GPUs of servers, which are tried by default."""

Gpus = str | CudaProfile | Sequence[str | CudaProfile] | Mapping[str | CudaProfile, int | None]
"""Types of GPUs, by name or profile; with numbers, or None for any up to the most of all types."""

_DEFAULTS = {
    name: value
    for name, value in (serve.__kwdefaults__ or {}).items()
    if name not in ("gpus", "gpu", "mesh", "suggests")
}
"""Of the options that a search takes too."""

MOST_GPUS = 8
"""GPUs of a node."""


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
        first = self.first_token is None or steady.first_token_seconds <= self.first_token
        return first and (self.each_token is None or steady.seconds <= self.each_token)


@dataclass(frozen=True)
class Offer:
    """A way to serve."""

    gpu: str  # the name of the profile
    plan: ServingPlan
    meets: bool  # whether it meets the limits
    price: float | None  # of a million tokens of answers, in the unit of the given prices
    hourly: float | None = None  # of an hour of all its GPUs

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.plan.server.axes.num_ranks

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

    @property
    def meeting(self) -> list[Offer]:
        """The offers that meet the limits."""
        return [offer for offer in self.offers if offer.meets]

    @property
    def fits(self) -> bool:
        """Whether any offer meets the limits."""
        return bool(self.meeting)

    @property
    def fewest(self) -> Offer | None:
        """The offer with the fewest GPUs, of these the one with most tokens per second."""
        return min(self.meeting, key=_fewest, default=None)

    @property
    def fastest(self) -> Offer | None:
        """The offer with most tokens per second on each GPU."""
        return max(self.meeting, key=_per_gpu, default=None)

    @property
    def least_hourly(self) -> Offer | None:
        """The offer with the lowest price of an hour; None without prices."""
        priced = [offer for offer in self.meeting if offer.hourly is not None]
        return min(priced, key=lambda offer: (offer.hourly or 0.0, _seconds(offer)), default=None)

    @property
    def nearest(self) -> tuple[int, Offer] | None:
        """The most users of whom each sees tokens within the limits, and the way that serves them,
        of those that are shown of each way; None if there is none.
        """
        limits, found = self.limits, list[tuple[int, Offer]]()
        for offer in self.offers:
            users = [n for n, steady in offer.plan.by_users if limits.hold_for(steady)]
            found += [(max(users), offer)] if users else []
        return max(found, key=lambda each: (each[0], -each[1].num_gpus), default=None)

    @property
    def cheapest(self) -> Offer | None:
        """The offer with the lowest price of a million tokens; None without prices."""
        priced = [offer for offer in self.meeting if offer.price is not None]
        return min(priced, key=lambda offer: offer.price or 0.0, default=None)

    @property
    def best(self) -> list[Offer]:
        """The offers that no other one beats both in tokens per second of each GPU and in the time
        of a token (Pareto), and the one with the fewest GPUs of each type, by the time of a token.
        """
        found: list[Offer] = []
        for offer in sorted(self.meeting, key=lambda offer: (_seconds(offer), -_per_gpu(offer))):
            if not found or _per_gpu(offer) > _per_gpu(found[-1]):
                found.append(offer)
        for kind in dict.fromkeys(offer.gpu for offer in self.meeting):
            least = min((o for o in self.meeting if o.gpu == kind), key=_fewest)
            found += [least] if least not in found else []
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
            **{key: None if each is None else each.to_dict() for key, each in named.items()},
            "best": [offer.to_dict() for offer in self.best],
            "num_tried": len(self.offers),
        }


def search_servers(
    target: str,
    *,
    users: int = 1,
    ttft: float | None = None,
    tpot: float | None = None,
    gpus: int = MOST_GPUS,
    gpu: Gpus = USUAL_GPUS,
    weights: str | Sequence[str] | None = None,
    prices: Mapping[str, float] | None = None,
    **options: Any,
) -> ServingSearch:
    """Find the GPUs, layouts and formats of weights that serve a model to a number of users.

    Args:
        target: a TARGET, as for :func:`serve`.
        users: the number of requests under way at the same time.
        ttft: the longest time to the first token under that load, in seconds.
        tpot: the longest time between two tokens of a user, in seconds.
        gpus: the most GPUs.
        gpu: the GPU types to try; or the most GPUs of each type, such as
            ``{"h100-80gb": 2, "l40s-48gb": 4}``: two of these or four of those.
        weights: the formats of the weights to try; by default the model's own.
        prices: of an hour of a GPU, by the name of its profile, in any currency.
        options: further options of :func:`serve`, such as ``context``.

    Raises:
        InputsError: if a limit or a price is invalid, or the model cannot be served.
        DeviceError: if there is no such GPU.
    """
    for name, value in (("ttft", ttft), ("tpot", tpot)):
        if value is not None and not is_number_above_0(value):
            raise InputsError(f"{name}={value!r} is not a number of seconds above 0")
    if not is_whole_number(gpus, 1):
        raise InputsError(f"gpus={gpus!r} is not a whole number of 1 or more")
    kinds = named_profiles([*gpu] if isinstance(gpu, Mapping) else _listed(gpu), "gpu")
    most = dict.fromkeys(kinds, gpus) | _numbers(gpu)
    check_mapping(prices, "prices")
    hourly = _hourly(prices or {}, kinds)
    formats = _listed(weights)
    for each in formats:
        format_named(each)  # refuses what is no format
    for name, given in (("gpu", kinds), ("weights", formats)):
        if not given:
            raise InputsError(f"{name} is empty: name one to try, or leave it out")
    limits = Limits(ttft, tpot)
    offers, refusals = [], []
    question = question_of(target, **{**_DEFAULTS, "users": users, **options})
    question = replace(question, gpus=tuple(kinds.values()))
    with progress("Searching"):
        for name, profile in kinds.items():
            if hardware_of(profile) is None:
                continue
            for mesh in _meshes(most[name], question):
                count(f"{name}, {mesh}")
                try:
                    plans = [*_plans(question, profile, mesh, formats)]
                except InputsError as error:
                    refusals.append(error)
                    continue
                offers += [_offer(name, plan, limits, hourly.get(name)) for plan in plans]
    if not offers and refusals:
        raise refusals[0]
    return ServingSearch(target, users, limits, tuple(offers), len(refusals))


def _numbers(gpu: Gpus) -> dict[str, int]:
    """The most GPUs of each type that a number is given of, by the name of its profile."""
    found = {}
    for kind, number in gpu.items() if isinstance(gpu, Mapping) else ():
        if number is not None and not is_whole_number(number, 1):
            raise InputsError(f"gpu has {number!r} of {kind!r}: give a whole number of 1 or more")
        if number is not None:
            found[named_profile(kind)[0]] = number
    return found


def _listed(given: Any) -> list[Any]:
    return [*given] if isinstance(given, (list, tuple)) else [given]


def _meshes(most: int, question: Question) -> Iterator[dict[str, int]]:
    """Tensors split by powers of two, between nodes stages, and replicas; for models with experts,
    also ranks with users of their own over which the experts are distributed.
    """
    for number in range(1, most + 1):
        split = 1
        while split <= number:
            if number % split == 0:
                stages = max(split // GPUS_PER_NODE, 1)
                yield {"replicate": number // split, "pp": stages, "tp": split // stages}
                if split > 1 and question.has_experts:
                    yield {"replicate": number // split, "ep": split}
            split *= 2


def _offer(name: str, plan: ServingPlan, limits: Limits, hourly: float | None) -> Offer:
    whole = None if hourly is None else hourly * plan.server.axes.num_ranks
    return Offer(name, plan, limits.met_by(plan), _price(plan, hourly), whole)


def _plans(
    question: Question, gpu: CudaProfile, mesh: Mapping[str, int], formats: Sequence[str | None]
) -> Iterator[ServingPlan]:
    """The plans of a layout by format; formats that the GPU has no kernels for are left out."""
    for name in formats:
        if name is None or has_kernels(gpu, name):
            yield replace(question, weights=name).plan_on(gpu, mesh)


def _hourly(prices: Mapping[str, float], kinds: Mapping[str, CudaProfile]) -> dict[str, float]:
    """Prices by the name of the profile, of which a given name may be the beginning."""
    found = {}
    for given, price in prices.items():
        named = [name for name in kinds if name == given or name.startswith(f"{given}-")]
        if not named:
            hint = did_you_mean(str(given), kinds) or f": these are {', '.join(kinds)}"
            raise InputsError(
                f"prices has a price of {given!r}, which is not among the GPUs that are tried{hint}"
            )
        if not is_number_above_0(price):
            raise InputsError(f"prices has a price of {given}: {price!r} is not a number above 0")
        found.update(dict.fromkeys(named, price))
    return found


def _price(plan: ServingPlan, hourly: float | None) -> float | None:
    rate = plan.tokens_per_second_per_gpu
    return None if hourly is None or not rate else hourly / (rate * 3600) * 1e6


def _fewest(offer: Offer) -> tuple[int, float]:
    return offer.num_gpus, -_per_gpu(offer)


def _per_gpu(offer: Offer) -> float:
    return offer.plan.tokens_per_second_per_gpu or 0.0


def _seconds(offer: Offer) -> float:
    return 0.0 if offer.plan.steady is None else offer.plan.steady.seconds
