"""Options with which all users fit, where they do not.

Input: a plan of a server, the question that it answers. Output: the plan with a remedy, or the same
plan. Invariant: what is suggested was planned, and fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torchfake.distributed.parallelize.mesh_axes import larger, mesh_text
from torchfake.distributed.passes.formats import FORMATS, has_kernels, with_fewer_bits
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.errors import InputsError
from torchfake.inspect.records.units import number_text, seconds_text
from torchfake.inspect.timing.collectives import GPUS_PER_NODE

_MOST_NODES = 4
"""Of one replica."""


def with_remedy(found: ServingPlan, question: Any) -> ServingPlan:
    """The plan with the changes with which all users fit: passes over fewer tokens, more GPUs; and
    weights, caches or both in fewer bits, each of which needs fewer GPUs than all that lose less.
    """
    own, fewest, remedies = found.num_gpus, None, list[str]()
    smaller = _SmallerPasses()
    for options, changed in narrower(question, _formats(found, question)):
        tried = _on_fewest(found, changed, fewest)
        if (tried is None or tried.num_gpus > own) and (least := smaller.plan(found, changed)):
            tried, options = least, [*options, f"--pass-tokens {least.server.most_tokens}"]
        if tried is None:
            continue
        fewest = tried.num_gpus
        is_same = larger(tried.server.axes.sizes) == larger(found.server.axes.sizes)
        where = [] if is_same and options else [_layout_text(tried)]
        text = " ".join([*options, *where])
        more = f" on {tried.num_gpus} GPUs" * ("--mesh" in text and tried.num_gpus != own)
        remedies.append(f"{text}, with room for {_most_text(tried)}{more}; {_times_text(tried)}")
        if fewest == own:
            break
    return replace(found, remedy="; or ".join(remedies))


def _most_text(found: ServingPlan) -> str:
    """The most users that fit, by the length of their sequences."""
    average = number_text(found.most_users_on_average, "user")
    full = f" at their average length, {found.most_users:,} with full contexts"
    return average + full * (found.most_users != found.most_users_on_average)


def _times_text(found: ServingPlan) -> str:
    """What each of the users who were asked for sees."""
    assert found.steady is not None
    first, each = found.steady.first_token_seconds, found.steady.seconds
    users = number_text(found.users, "user")
    return f"with {users} first token {seconds_text(first)}, each token {seconds_text(each)}"


def _formats(found: ServingPlan, question: Any) -> Iterable[str]:
    """The formats in fewer bits that the GPU has kernels for, one of each number of bits; none if
    the user has named a format.
    """
    machine, by_bits = found.server.machine, dict[int, str]()
    for name in with_fewer_bits(machine.weights) if question.weights is None else ():
        if has_kernels(machine.gpu, name):
            by_bits.setdefault(FORMATS[name].bits, name)
    return by_bits.values()


def narrower(question: Any, formats: Iterable[str]) -> Iterator[tuple[list[str], Any]]:
    """Options, and the question with them: none, the cache in fewer bits, the weights in each of
    the formats, and both. What loses less comes first.
    """
    for name in (None, *formats):
        with_weights = question if name is None else replace(question, weights=name)
        options: list[str] = [] if name is None else [f"--weights {name}"]
        yield options, with_weights
        if question.serve.cache_dtype is None:
            cache = replace(with_weights, serve=replace(question.serve, cache_dtype="fp8"))
            yield [*options, "--cache-dtype fp8"], cache


def _on_fewest(found: ServingPlan, question: Any, below: int | None) -> ServingPlan | None:
    """The plan on the fewest GPUs on which all users fit, if they are less than `below`; of equal
    ones the one with most tokens per second.
    """
    best, fewest = None, math.inf if below is None else below - 1
    for sizes in _layouts(found):
        if math.prod(sizes.values()) > fewest:
            continue
        try:
            tried = question.plan_on(found.server.machine.gpu, sizes)
            most = tried.most_users_on_average
            if not most:
                continue
            replicas = -(-found.users // most)
            if replicas * tried.num_gpus > fewest:
                continue
            if replicas > 1:
                sizes = {"replicate": replicas, **sizes}
                tried = question.plan_on(found.server.machine.gpu, sizes)
        except InputsError:
            continue
        if tried.fits and (best is None or _order(tried) < _order(best)):
            best, fewest = tried, tried.num_gpus
    return best


class _SmallerPasses:
    """Plans on the same GPUs with passes over fewer tokens, whose activations leave more room."""

    def __init__(self) -> None:
        self._works: dict[int, dict[Any, Any]] = {}  # what ranks do, by the tokens of a pass

    def plan(self, found: ServingPlan, question: Any) -> ServingPlan | None:
        """The plan with the most tokens of a pass with which all users fit, a power of two; None if
        none does.
        """
        gpu, sizes = found.server.machine.gpu, found.server.axes.sizes
        try:
            own = question.plan_on(gpu, sizes)
        except InputsError:
            return None
        server, memory = own.server, own.memory
        length = max(round(server.request.mean_context), 2)
        shortened = replace(server, serve=server.serve.resized("context", length))
        taken = shortened.cache_bytes(own.users_of_replica)
        left = memory.cache + memory.activations - taken  # for activations, about as many as tokens
        most = min(server.most_tokens - 1, server.most_tokens * left // memory.activations)
        if most < _FEWEST_TOKENS:
            return None
        tokens = 1 << (int(most).bit_length() - 1)
        while tokens >= _FEWEST_TOKENS:
            serve, works = replace(question.serve, prefill=tokens), self._works
            fewer = replace(question, serve=serve, works=works.setdefault(tokens, {}))
            tried: ServingPlan = fewer.plan_on(gpu, sizes)
            if tried.fits:
                return tried
            tokens //= 2
        return None


_FEWEST_TOKENS = 512
"""Of a pass: fewer make the first token slow, as each pass reads all weights."""


def _order(found: ServingPlan) -> tuple[int, float]:
    return found.num_gpus, -(found.tokens_per_second or 0.0)


def _layouts(found: ServingPlan) -> Iterator[dict[str, int]]:
    """Layouts of one replica, from that of the plan to those of more GPUs."""
    sizes = {name: n for name, n in found.server.axes.sizes.items() if name != "replicate"}
    split, stages = sizes.get("tp", 1), sizes.get("pp", 1)
    others = {name: n for name, n in sizes.items() if name not in ("pp", "tp")}
    yield sizes
    if found.server.work.has_experts and larger(sizes) == {"tp": split}:
        yield from ({"ep": ranks} for ranks in dict.fromkeys((min(split, GPUS_PER_NODE), split)))
    while split < GPUS_PER_NODE:
        split *= 2
        yield {**sizes, "tp": split}
    while stages < _MOST_NODES:
        stages *= 2
        yield {"pp": stages, **others, "tp": split}


def _layout_text(found: ServingPlan) -> str:
    sizes = larger(found.server.axes.sizes)
    is_usual = set(sizes) == {"tp"} and found.num_gpus <= GPUS_PER_NODE
    return f"--gpus {sizes['tp']}" if is_usual else f"--mesh {mesh_text(sizes)}"
