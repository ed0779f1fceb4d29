"""What a step reserves on a GPU with limited memory: a step that ran, and one of another size.

Input: estimates of a step. Output: bytes that the caching allocator reserves. Invariant: a
prediction for a size that was not run can be compared with what that size is found to take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.storages.lifetimes import Lifetimes


def reserved_with_room(estimates: Iterable[Estimate]) -> int:
    """Peak bytes that the caching allocator of any rank reserves where no request is refused."""
    return max(found.peak_reserved_bytes or 0 for found in estimates)


def reserved_on(estimate: Estimate, usable_bytes: int, total_bytes: int) -> int:
    """Peak bytes that the caching allocator reserves for a step if it can use `usable_bytes`; more
    than `usable_bytes` if the step does not fit.
    """
    reserved = estimate.peak_reserved_bytes
    assert reserved is not None, "the estimate is for a GPU"
    whole = estimate.step.allocator.per_process_memory_fraction == 1.0
    if whole and (reserved <= usable_bytes or estimate.peak_bytes > usable_bytes):
        return reserved
    within = estimate.reserved_within(usable_bytes, total_bytes)
    return within.peak_reserved_bytes if within.fits else max(reserved, usable_bytes + 1)


def fitted_bytes(estimate: Estimate, usable_bytes: int, total_bytes: int) -> int:
    """As :func:`reserved_on`, but if the step does not fit, any number above `usable_bytes`. In
    memory that is large enough, the allocator reserves what it reserves in unlimited memory.
    """
    within = estimate.reserved_within(usable_bytes, total_bytes)
    return within.peak_reserved_bytes if within.fits else usable_bytes + 1


class Line(NamedTuple):
    """The estimates of a step, one for each kind of rank, at two sizes. Both have the same storages
    in the same order, so the bytes of each storage at another size are probably on a line.
    """

    size: int
    found: Sequence[Estimate]
    other_size: int
    others: Sequence[Estimate]

    @property
    def is_straight(self) -> bool:
        """Whether the storages are the same at both sizes."""
        pairs = _pairs(self.found, self.others)
        return pairs is not None and all(_have_same_order(*each) for each in pairs)

    def is_through(self, size: int, ran: Sequence[Estimate]) -> bool:
        """Whether a run at another size had the same storages, with exactly the predicted bytes."""
        told, pairs = _pairs(self.found, self.others), _pairs(self.found, ran)
        if told is None or pairs is None or not all(_have_same_order(*each) for each in pairs):
            return False
        both = zip(told, pairs, strict=True)
        return all(
            np.array_equal(self._at(size, one, other).num_bytes, at.num_bytes)
            for (one, other), (_, at) in both
        )

    def fits(self, size: int, gpu: CudaProfile, usable_bytes: int) -> bool:
        """Whether the step would fit at another size."""
        for each, other in zip(self.found, self.others, strict=True):
            told = each.of_runs([*map(self._told, repeat(size), each.runs, other.runs)])
            if told.peak_bytes > usable_bytes and told.round_to <= 512:
                return False
            if fitted_bytes(told, usable_bytes, gpu.total_memory) > usable_bytes:
                return False
        return True

    def _told(self, size: int, one: Estimate, other: Estimate) -> Estimate:
        pairs = zip(one.tables, other.tables, strict=True)
        lives, *first = [self._at(size, *tables) for tables in pairs]
        told = replace(one, lives=lives, first_lives=first[0] if first else None)
        return replace(told, steps=(), evaluation=None)

    def _at(self, size: int, one: Lifetimes, other: Lifetimes) -> Lifetimes:
        growth = (other.num_bytes - one.num_bytes) * (size - self.size)
        num_bytes = one.num_bytes + growth // (self.other_size - self.size)
        return one._replace(num_bytes=np.maximum(num_bytes, 0))


def _pairs(
    found: Sequence[Estimate], others: Sequence[Estimate]
) -> list[tuple[Lifetimes, Lifetimes]] | None:
    """The tables of two sizes, in pairs; None if one has more of them."""
    each, more = ([_tables(one) for one in rows] for rows in (found, others))
    if list(map(len, each)) != list(map(len, more)):
        return None
    return list(zip(chain(*each), chain(*more), strict=True))


def _tables(estimate: Estimate) -> list[Lifetimes]:
    return [lives for each in estimate.runs for lives in each.tables]


def _have_same_order(one: Lifetimes, other: Lifetimes) -> bool:
    return np.array_equal(one.allocated_at, other.allocated_at) and np.array_equal(
        one.freed_at, other.freed_at
    )
