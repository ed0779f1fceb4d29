"""Finds a prefix of tensor names that differs between two models.

Input: for each of two models, the names that only this model has. Output: the prefix in each model,
or nothing. Invariant: every pair is one name of each model, equal after the two prefixes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

MAX_PREFIX_PARTS = 3
"""The most parts of a name, separated by dots, that a prefix may have."""


class RenamedPrefix(NamedTuple):
    """A prefix of names in A, and the prefix that the same names have in B."""

    in_a: str  # "", or a prefix that ends with a dot
    in_b: str
    pairs: tuple[tuple[str, str], ...]  # each name in A, and its name in B

    @property
    def text(self) -> str:
        """The difference as text: ``the prefix 'model.' of names in B``."""
        if self.in_a and self.in_b:
            return f"the prefix {self.in_b!r} of names in B, {self.in_a!r} in A"
        return f"the prefix {(self.in_a or self.in_b)!r} of names in {'A' if self.in_a else 'B'}"


def find_renamed_prefix(only_a: Collection[str], only_b: Collection[str]) -> RenamedPrefix | None:
    """The two prefixes after which most names are equal, if these are at least half of one side.

    >>> find_renamed_prefix(["wte.w", "h.0.w"], ["model.wte.w", "model.h.0.w", "head.w"]).in_b
    'model.'
    """
    prefixes_a: dict[str, list[str]] = {}  # by the rest of the name
    for name in only_a:
        for prefix, rest in _splits(name):
            prefixes_a.setdefault(rest, []).append(prefix)
    counts: Counter[tuple[str, str]] = Counter()
    for name in only_b:
        for in_b, rest in _splits(name):
            counts.update((in_a, in_b) for in_a in prefixes_a.get(rest, ()))
    most = max(counts.values(), default=0)
    if most < 2 or 2 * most < min(len(only_a), len(only_b)):
        return None
    best = (pair for pair, count in counts.items() if count == most)
    in_a, in_b = min(best, key=lambda pair: (len(pair[0]) + len(pair[1]), pair))
    names_b = set(only_b)
    pairs = ((name, in_b + name[len(in_a) :]) for name in only_a if name.startswith(in_a))
    return RenamedPrefix(in_a, in_b, tuple(pair for pair in pairs if pair[1] in names_b))


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """A name split into prefix and rest: with an empty prefix, and at each of its first dots."""
    parts = name.split(".")
    for count in range(min(MAX_PREFIX_PARTS + 1, len(parts))):
        yield "".join(f"{part}." for part in parts[:count]), ".".join(parts[count:])
