"""What a layout takes at full depth, from runs of a few layers.

Input: a function that plans a model of some depth. Output: :class:`Taken`. Invariant: nothing is
extrapolated that did not grow by the same for each of the layers that were added. Called by:
``search``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torchfake.distributed.strategies.target_plan import TargetPlan

DEPTHS = (3, 4, 5)
"""Layers that are run: FSDP2 gathers one layer ahead, so with fewer not all is as between many."""

_TOLERANCE = 0.01


class Taken(NamedTuple):
    """What each rank of a layout takes."""

    peak_bytes: int
    reserved_bytes: int
    step_seconds: float | None
    is_extrapolated: bool = False


def taken_at(depth: int | None, run: Callable[[int | None], TargetPlan]) -> Taken:
    """What a layout takes.

    Args:
        depth: layers of the model; None if that is not known.
        run: plans it with so many layers; None: with all.
    """
    if depth is None or depth <= max(DEPTHS):
        return taken_by(run(None))
    found = [taken_by(run(layers)) for layers in DEPTHS]
    peak = _extrapolated([row.peak_bytes for row in found], depth)
    seconds = _extrapolated([row.step_seconds for row in found], depth)
    if peak is None:
        return taken_by(run(None))
    unused = max(row.reserved_bytes - row.peak_bytes for row in found)
    return Taken(round(peak), round(peak) + unused, seconds, True)


def taken_by(found: TargetPlan) -> Taken:
    """What the ranks of a plan take."""
    reserved = found.plan.peak_reserved_bytes
    assert reserved is not None
    return Taken(found.plan.peak_bytes, reserved, found.step_seconds)


def _extrapolated(values: list[int] | list[float | None], depth: int) -> float | None:
    """The value at `depth`; None if it does not grow in proportion."""
    first, second, third = values
    if first is None or second is None or third is None:
        return None
    growth = third - second
    if abs(growth - (second - first)) > _TOLERANCE * max(abs(growth), abs(third) * _TOLERANCE):
        return None
    return third + growth * (depth - DEPTHS[-1])
