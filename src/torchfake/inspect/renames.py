"""Names that differ in their beginning alone: a hint at what was renamed.

Enters: the names that only one of two models has. Leaves: how the names of one are written in the
other, or nothing. Invariant: every pair is of one name of each, alike behind the two beginnings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

MAX_PARTS = 3
"""How many parts of a name the beginning may have."""


class Renamed(NamedTuple):
    """What one model's names begin with where the other's begin otherwise."""

    in_a: str  # "" or with its last dot
    in_b: str
    pairs: tuple[tuple[str, str], ...]  # a name of A, and what it is in B


def renamed(only_a: Collection[str], only_b: Collection[str]) -> Renamed | None:
    """The two beginnings behind which most names are alike, if those are half of one side.

    >>> renamed(["wte.w", "h.0.w"], ["model.wte.w", "model.h.0.w", "head.w"]).in_b
    'model.'
    """
    rests: dict[str, list[str]] = {}
    for name in only_a:
        for beginning, rest in _cuts(name):
            rests.setdefault(rest, []).append(beginning)
    counts: Counter[tuple[str, str]] = Counter()
    for name in only_b:
        for in_b, rest in _cuts(name):
            counts.update((in_a, in_b) for in_a in rests.get(rest, ()))
    most = max(counts.values(), default=0)
    if most < 2 or 2 * most < min(len(only_a), len(only_b)):
        return None
    best = (pair for pair, count in counts.items() if count == most)
    in_a, in_b = min(best, key=lambda pair: (len(pair[0]) + len(pair[1]), pair))
    there = set(only_b)
    alike = ((name, in_b + name[len(in_a) :]) for name in only_a if name.startswith(in_a))
    return Renamed(in_a, in_b, tuple(pair for pair in alike if pair[1] in there))


def _cuts(name: str) -> Iterator[tuple[str, str]]:
    """A name in two: before all of it, and at each of its first few dots."""
    parts = name.split(".")
    for count in range(min(MAX_PARTS + 1, len(parts))):
        yield "".join(f"{part}." for part in parts[:count]), ".".join(parts[count:])
