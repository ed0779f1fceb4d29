"""Ways to serve a model within limits, and changes with which something does, or does with less.

Input: a question, GPUs, formats, limits. Output: offers. Invariant: each offer was planned; a
change is named with one that meets the limits, or as one with which none does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from torchfake._core.gpu_profiles import CudaProfile
from torchfake._progress import count
from torchfake.distributed.passes.formats import has_kernels, with_fewer_bits
from torchfake.distributed.serving.limits import Limits
from torchfake.distributed.serving.offers import (
    MORE_GPUS,
    Offer,
    ServingSearch,
    by_cost,
)
from torchfake.distributed.serving.remedies import narrower
from torchfake.distributed.serving.serve import Question
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.errors import InputsError
from torchfake.inspect.timing.collectives import GPUS_PER_NODE
from torchfake.inspect.timing.hardware import hardware_of


@dataclass(frozen=True)
class Ways:
    """What is tried, and what is asked of it."""

    kinds: Mapping[str, CudaProfile]
    most: Mapping[str, int]  # GPUs, by the name of the profile
    formats: Sequence[str | None]
    caches: Sequence[Any]  # dtypes; None: the model's
    limits: Limits
    hourly: Mapping[str, float]
    fills: bool = False  # each replica gets the most users that it serves

    def offers(self, question: Question) -> tuple[list[Offer], list[InputsError]]:
        """The offers, and the errors of layouts that do not suit the model."""
        offers, refusals = list[Offer](), list[InputsError]()
        for name in self._timed():
            meshes = _replicas if self.fills else _meshes
            for mesh in meshes(self.most[name], question):
                count(f"{name}, {mesh}")
                try:
                    offers += [
                        self._offer(name, each, mesh) for each in self._asked(name, question)
                    ]
                except InputsError as error:
                    refusals.append(error)
        return offers, refusals

    def fewest_replicas(self, question: Question) -> Iterator[Offer]:
        """Of each type, layout of a replica and format the fewest replicas that meet the limits; if
        none do, the most. More replicas have fewer users each, who wait for less.
        """
        for name in self._timed():
            for mesh in _replicas(self.most[name], question):
                count(f"{name}, {mesh}")
                for asked in self._asked(name, question):
                    try:
                        yield self._fewest_replicas(name, asked, mesh)
                    except InputsError:
                        continue

    def _fewest_replicas(self, name: str, asked: Question, mesh: Mapping[str, int]) -> Offer:
        few, many = 0, 1 if self.fills else self.most[name] // math.prod(mesh.values())
        found = self._offer(name, asked, {"replicate": many, **mesh})
        while found.meets and many - few > 1:
            number = (few + many) // 2
            tried = self._offer(name, asked, {"replicate": number, **mesh})
            few, many, found = (few, number, tried) if tried.meets else (number, many, found)
        return found

    def _timed(self) -> Iterator[str]:
        return (name for name, gpu in self.kinds.items() if hardware_of(gpu) is not None)

    def _asked(self, kind: str, question: Question) -> Iterator[Question]:
        """The question with each format; those that the GPU has no kernels for are left out."""
        for name, dtype in product(self.formats, self.caches):
            if name is None or has_kernels(self.kinds[kind], name):
                workload = replace(question.serve, cache_dtype=dtype)
                yield replace(question, weights=name, serve=workload)

    def _offer(self, name: str, asked: Question, mesh: Mapping[str, int]) -> Offer:
        plan, hourly = asked.plan_on(self.kinds[name], mesh), self.hourly.get(name)
        if self.fills:
            number = min(self.limits.most_users(plan), plan.most_users)
            plan = plan.serving(max(number, 1))
        whole = None if hourly is None else hourly * plan.num_gpus
        return Offer(name, plan, self.limits, _price(plan, hourly), whole, self.fills)


def _replicas(most: int, question: Question) -> Iterator[dict[str, int]]:
    """Tensors split by powers of two, between nodes stages; for models with experts, also ranks
    with users of their own over which the experts are distributed.
    """
    split = 1
    while split <= most:
        stages = max(split // GPUS_PER_NODE, 1)
        yield {"pp": stages, "tp": split // stages}
        if split > 1 and question.has_experts:
            yield {"ep": split}
        split *= 2


def _meshes(most: int, question: Question) -> Iterator[dict[str, int]]:
    """Layouts of each number of GPUs: equal replicas on all of them."""
    for number in range(1, most + 1):
        for mesh in _replicas(number, question):
            replicas, rest = divmod(number, math.prod(mesh.values()))
            if not rest:
                yield {"replicate": replicas, **mesh}


def _price(plan: ServingPlan, hourly: float | None) -> float | None:
    rate = plan.tokens_per_second_per_gpu
    return None if hourly is None or not rate else hourly / (rate * 3600) * 1e6


# Changes.

_Change = tuple[str, Ways, Question]
"""What is changed, as text, and what is then tried and asked."""


def with_changes(found: ServingSearch, ways: Ways, question: Question) -> ServingSearch:
    """The search with changes to fewer bits with which fewer GPUs than those of the answer do, or
    with prices cheaper ones: the best, and the first. If there is no answer: with the first change
    to fewer bits with which one does, and with more GPUs; if neither does, with both.
    """
    answer, tried = found.answer, list[tuple[str, Offer]]()
    if answer is not None:
        fewer = ways
        if answer.hourly is None and not ways.fills:  # what costs less has fewer GPUs
            least = answer.num_gpus - 1
            fewer = replace(ways, most={kind: min(least, n) for kind, n in ways.most.items()})

        def is_cheaper(offer: Offer) -> bool:
            return offer.cost < answer.cost

        each = [*_meeting(_in_fewer_bits(fewer, question), tried, is_cheaper)]
        return replace(found, remedies=_first_and_best(each))
    more = replace(ways, most={kind: MORE_GPUS * n for kind, n in ways.most.items()})
    narrow = _in_fewer_bits(more, question)
    both = ((f"{text} and more GPUs", on, asked) for text, on, asked in narrow)
    either = (_in_fewer_bits(ways, question), [("more GPUs", more, question)])
    remedies = [one for changes in either for one in islice(_meeting(changes, tried), 1)]
    known = min((offer.cost for _, offer in remedies), default=(True, math.inf))
    if cheaper := [one for one in _meeting(both, tried) if one[1].cost < known]:
        remedies.append(min(cheaper, key=_cost_of_change))
    return replace(found, remedies=tuple(remedies), failed=() if remedies else tuple(tried))


def _first_and_best(changes: list[tuple[str, Offer]]) -> tuple[tuple[str, Offer], ...]:
    """Of changes in the order of what they lose: the one that costs least, and the first."""
    best = min(changes, key=_cost_of_change, default=None)
    return () if best is None else (best, *(one for one in changes[:1] if one is not best))


def _cost_of_change(change: tuple[str, Offer]) -> tuple[bool, float]:
    return change[1].cost


def _meeting(
    changes: Iterable[_Change],
    tried: list[tuple[str, Offer]],
    accepts: Callable[[Offer], bool] = lambda offer: True,
) -> Iterator[tuple[str, Offer]]:
    """The changes with which an offer meets the limits, each with the one of these offers that has
    the fewest GPUs or, with prices, is the cheapest; all that is tried is added to `tried`.
    """
    for text, ways, asked in changes:
        offers = [*ways.fewest_replicas(asked)]
        tried += [(text, offer) for offer in offers]
        meeting = [offer for offer in offers if offer.meets and accepts(offer)]
        if meeting:
            yield text, min(meeting, key=by_cost)


def _in_fewer_bits(ways: Ways, question: Question) -> Iterator[_Change]:
    """Options, and what is tried and asked with them; weights stay in formats that were given."""
    is_free = [*ways.formats] == [None]
    for options, asked in narrower(question, with_fewer_bits(question.format) if is_free else ()):
        if options:
            tried = replace(ways, formats=[asked.weights]) if is_free and asked.weights else ways
            if asked.serve.cache_dtype is not None:
                tried = replace(tried, caches=[asked.serve.cache_dtype])
            yield " ".join(options), tried, asked
