"""The least recomputation that fits: a knapsack over the blocks of a model.

Input: the bytes that each block keeps and the seconds that it recomputes, for each way to
checkpoint it; and a budget of bytes. Output: a way for each block. Invariant: the kept bytes are
within the budget, with the fewest seconds possible (exact unless a front, the ways that no other
beats in both bytes and seconds, has more than ``_MOST_POINTS`` points).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

_MOST_POINTS = 20_000
"""The most points of a front that are kept; models with few kinds of blocks need no more."""

Array = np.ndarray[Any, Any]


class Option(NamedTuple):
    """One way to checkpoint a block."""

    num_bytes: int  # kept until the backward pass
    seconds: float  # of recomputation


class _Front(NamedTuple):
    """The Pareto front of the ways to checkpoint some blocks: no way needs both more bytes and more
    seconds than another. The way with the fewest bytes is first.
    """

    num_bytes: Array
    seconds: Array
    origin: Array  # how each way was composed: counts of options, or points of two fronts

    @classmethod
    def of(cls, num_bytes: Array, seconds: Array, origin: Array) -> _Front:
        order = np.lexsort((seconds, num_bytes))
        found = seconds[order]
        least = np.minimum.accumulate(np.concatenate([[np.inf], found[:-1]]))
        kept = order[found < least]
        if len(kept) > _MOST_POINTS:
            kept = kept[np.linspace(0, len(kept) - 1, _MOST_POINTS).astype(np.int64)]
        return cls(num_bytes[kept], seconds[kept], origin[kept])


def least_seconds(blocks: Sequence[Sequence[Option]], budget: int) -> list[int] | None:
    """Choose an option for each block, by its position; None if no choice fits in the budget.

    Among blocks with equal options, the earlier ones recompute more: their backward pass runs when
    activations of the later blocks have been freed.

    >>> keep, recompute = Option(10, 0.0), Option(2, 1.0)
    >>> least_seconds([[keep, recompute]] * 3, 22)
    [1, 0, 0]
    """
    members: dict[tuple[Option, ...], list[int]] = {}
    for position, options in enumerate(blocks):
        members.setdefault(tuple(options), []).append(position)
    fronts = [_of_alike(options, len(alike)) for options, alike in members.items()]
    sums = [_Front(np.zeros(1, np.int64), np.zeros(1), np.zeros((1, 2), np.int64))]
    spare = [sum(int(front.num_bytes[0]) for front in fronts[i:]) for i in range(len(fronts) + 1)]
    for front, rest in zip(fronts, spare[1:], strict=True):
        added = _sum(sums[-1], front, budget - rest)
        if not len(added.num_bytes):
            return None
        sums.append(added)
    chosen = _trace(sums)
    found = [0] * len(blocks)
    for (options, alike), front, point in zip(members.items(), fronts, chosen, strict=True):
        counts = front.origin[point]
        by_work = sorted(range(len(options)), key=lambda i: (-options[i].seconds, i))
        taken = [option for option in by_work for _ in range(int(counts[option]))]
        for position, option in zip(alike, taken, strict=True):
            found[position] = option
    return found


def _of_alike(options: Sequence[Option], number: int) -> _Front:
    """The front of `number` blocks that all have the same options."""
    counts = _counts(len(options), number)
    num_bytes = counts @ np.array([option.num_bytes for option in options], np.int64)
    return _Front.of(num_bytes, counts @ np.array([option.seconds for option in options]), counts)


def _counts(num_options: int, number: int) -> Array:
    """All distributions of a number of blocks over options, as counts, int64 [ways, options]."""
    if num_options == 1:
        return np.array([[number]], np.int64)
    parts = []
    for first in range(number + 1):
        rest = _counts(num_options - 1, number - first)
        parts.append(np.concatenate([np.full((len(rest), 1), first), rest], axis=1))
    return np.concatenate(parts)


def _sum(done: _Front, front: _Front, budget: int) -> _Front:
    """Combine a front with that of one more group of blocks, within the budget."""
    num_bytes = np.add.outer(done.num_bytes, front.num_bytes)
    before, point = np.nonzero(num_bytes <= budget)
    seconds = done.seconds[before] + front.seconds[point]
    return _Front.of(num_bytes[before, point], seconds, np.stack([before, point], axis=1))


def _trace(sums: list[_Front]) -> list[int]:
    """The points of the groups' fronts, in order, that compose the fastest way in total."""
    at, points = len(sums[-1].num_bytes) - 1, []
    for _, after in reversed(list(pairwise(sums))):
        before, point = after.origin[at]
        points.append(int(point))
        at = int(before)
    return points[::-1]
