"""Finds repetitions in a sequence: ``a b b b c`` is ``a, 3 x b, c``.

Input: a sequence of numbers. Output: runs. Invariant: the runs, written out one after the other,
are the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

LONGEST_PERIOD = 64


class Run(NamedTuple):
    """`times` equal stretches of a sequence, each `period` long."""

    first: int  # position
    period: int
    times: int


def runs_in(
    numbers: Sequence[int], may_repeat: Callable[[int, int], bool] = lambda first, end: True
) -> list[Run]:
    """Split a sequence into runs, each chosen to cover as much of the rest as possible.

    Args:
        numbers: the sequence.
        may_repeat: whether the stretch between two positions may be the period of a run.

    >>> runs_in([7, 1, 1, 1])
    [Run(first=0, period=1, times=1), Run(first=1, period=1, times=3)]
    >>> runs_in([1, 2, 1, 2])
    [Run(first=0, period=2, times=2)]
    """
    found, position = [], 0
    while position < len(numbers):
        best = Run(position, 1, 1)
        for period in range(1, min(LONGEST_PERIOD, (len(numbers) - position) // 2) + 1):
            count = _repeats(numbers, position, period)
            longer = count > 1 and count * period > best.times * best.period
            if longer and may_repeat(position, position + period):
                best = Run(position, period, count)
        found.append(best)
        position += best.period * best.times
    return found


def _repeats(numbers: Sequence[int], first: int, period: int) -> int:
    """How often the stretch of length `period` at `first` occurs in direct succession."""
    end = first + period
    while end < len(numbers) and numbers[end] == numbers[end - period]:
        end += 1
    return (end - first) // period
