"""Options with which all users fit, where they do not.

Input: a plan of a server, the question that it answers. Output: the plan with a remedy, or the same
plan. Invariant: what is suggested was planned, and fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torchfake.distributed.parallelize.mesh_axes import larger, mesh_text
from torchfake.distributed.passes.formats import has_kernels
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.errors import InputsError
from torchfake.inspect.timing.collectives import GPUS_PER_NODE

_FORMATS = ("fp8", "awq")
"""Formats that are suggested, in this order: the smaller one loses more."""

Change = tuple[str, str | None, dict[str, int]]
"""Options as text, the format of the weights, and the sizes of axes."""


def with_remedy(found: ServingPlan, question: Any) -> ServingPlan:
    """The plan with the first change of each kind with which all users fit: weights in fewer bits,
    and more GPUs.
    """
    kinds = _formats(found), _more_gpus(found, question)
    remedies = [text for kind in kinds if (text := _first(kind, found, question))]
    return replace(found, remedy="; or ".join(remedies))


def _first(changes: Iterable[Change], found: ServingPlan, question: Any) -> str:
    """The first change with which all users fit, as text; "" if there is none."""
    for text, weights, sizes in changes:
        try:
            tried = replace(question, weights=weights).plan_on(found.server.machine.gpu, sizes)
        except InputsError:
            continue
        if tried.fits:
            return f"{text}, which serves {tried.most_users_on_average:,} users"
    return ""


def _formats(found: ServingPlan) -> Iterator[Change]:
    if found.server.machine.weights is None:
        for name in _FORMATS:
            if has_kernels(found.server.machine.gpu, name):
                yield f"--weights {name}", name, dict(found.server.axes.sizes)


def _more_gpus(found: ServingPlan, question: Any) -> Iterator[Change]:
    sizes = dict(found.server.axes.sizes)
    split = sizes.get("tp", 1)
    is_split_only = found.server.axes.num_ranks == split
    if found.server.work.has_experts and is_split_only and split > 1:
        yield f"--mesh ep={split}", question.weights, {"ep": split}
    while split < GPUS_PER_NODE:
        split *= 2
        more = {**sizes, "tp": split}
        text = f"--gpus {split}" if is_split_only else f"--mesh {mesh_text(larger(more))}"
        yield text, question.weights, more
    more = {**sizes, "replicate": sizes.get("replicate", 1) * 2}
    yield f"--mesh {mesh_text(larger(more))}", question.weights, more
