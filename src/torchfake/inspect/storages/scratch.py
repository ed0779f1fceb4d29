"""Scratch memory of kernels, on other GPUs than that of the run.

Input: the lifetimes of a run, with the calls whose scratch memory depends on the GPU. Output: the
lifetimes that a run on another GPU would have recorded. Invariant: operators, their results and the
order of events are those of the run; scratch memory alone is exchanged, and events renumbered.
"""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import numpy as np

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.storages.lifetimes import Array, Lifetime, Lifetimes, columns_of

Sizes = tuple[int, ...]


class ScratchCall(NamedTuple):
    """A call whose kernel allocates other scratch memory on other GPUs."""

    life: Lifetime  # of the first allocation, as it is, or would be if there is none
    sizes: dict[CudaProfile, Sizes]  # bytes of each allocation


class _Exchange(NamedTuple):
    """The scratch memory of a call on the GPU of the run, and on another."""

    life: Lifetime
    before: Sizes
    sizes: Sizes

    @property
    def first_event(self) -> int:
        return self.life.allocated_at

    @property
    def end(self) -> int:
        """The event after those of the call: each allocation is followed by its end."""
        return self.first_event + 2 * len(self.before)


def sizes_on(lives: Lifetimes, gpu: CudaProfile) -> tuple[Sizes, ...]:
    """The scratch memory on a GPU of each call for which it depends on the GPU."""
    return tuple(call.sizes[gpu] for call in lives.scratch)


def lifetimes_on(lives: Lifetimes, gpu: CudaProfile, other: CudaProfile) -> Lifetimes:
    """The lifetimes of a run on one GPU, as they would be on another; the same ones if they are."""
    calls = [
        _Exchange(call.life, call.sizes[gpu], call.sizes[other])
        for call in lives.scratch
        if call.sizes[gpu] != call.sizes[other]
    ]
    if not calls:
        return lives
    dropped = [call.first_event + i for call in calls for i in range(len(call.before))]
    kept = lives.rows(~np.isin(lives.allocated_at, dropped))
    ends = np.array([call.end for call in calls])
    growths = [0, *np.cumsum([2 * (len(call.sizes) - len(call.before)) for call in calls])]

    def moved(events: Any) -> Array:
        numbers: Array = events + np.array(growths)[np.searchsorted(ends, events, "right")]
        return numbers

    num_events = int(moved(np.array([lives.num_events]))[0])
    made = [
        life
        for call, growth in zip(calls, growths, strict=False)
        if str(call.life.device) in lives.device[:1]
        for life in _lives_of(call, int(growth))
    ]
    kept = kept._replace(allocated_at=moved(kept.allocated_at), freed_at=moved(kept.freed_at))
    return _merged(kept, columns_of(made, num_events))


def _lives_of(call: _Exchange, growth: int) -> list[Lifetime]:
    """The lifetimes of a call's scratch memory on the other GPU."""
    lives = []
    for i, size in enumerate(call.sizes):
        life = copy(call.life)
        life.num_bytes, life.allocated_at = size, call.first_event + growth + i
        life.freed_at = life.allocated_at + len(call.sizes)
        lives.append(life)
    return lives


def _merged(some: Lifetimes, others: Lifetimes) -> Lifetimes:
    """The rows of two tables, in the order of allocation."""
    order = np.argsort(np.concatenate([some.allocated_at, others.allocated_at]), kind="stable")
    columns: dict[str, Any] = {}
    each: Any = zip(Lifetimes._fields, some, others, strict=True)
    for name, column, more in each:
        if isinstance(column, np.ndarray):
            columns[name] = np.concatenate([column, more])[order]
        elif name not in ("num_events", "scratch"):
            both = column + more
            columns[name] = tuple([both[i] for i in order.tolist()])
    return Lifetimes(**columns, num_events=others.num_events)
