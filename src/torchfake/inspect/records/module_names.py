"""Full names of modules and tensors, and many names as one text: ``layers.0-31.weight``.

Input: names. Output: names, and texts with ranges that stand for several names. Invariant: a text
with several ranges stands for their Cartesian product, and all of these names were given.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

Numbers = tuple[str, ...]
Pattern = tuple[str | None, ...]
"""The parts of a name, with None in place of each number."""


def join_name(path: str, name: str) -> str:
    """The full name of the child or tensor `name` of the module at `path`."""
    return f"{path}.{name}" if path else name


def name_and_ancestors(name: str) -> Iterator[str]:
    """A full name, and the names of all modules that contain it, up to the root's, "".

    >>> list(name_and_ancestors("layers.3.mlp"))
    ['layers.3.mlp', 'layers.3', 'layers', '']
    """
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


def index_ranges(names: tuple[str, ...]) -> str:
    """The names of siblings, abbreviated: ``0-23``, ``1, 3, ... 47`` or ``0-2, 5``.

    >>> index_ranges(("0", "1", "2", "5"))
    '0-2, 5'
    """
    if len(names) == 1 or not all(name.isdecimal() for name in names):
        return ", ".join(names)
    numbers = [int(name) for name in names]
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(texts) if len(texts) < 6 else f"{texts[0]}, {texts[1]}, ... {texts[-1]}"


def fold_names(names: Iterable[str]) -> list[tuple[str, int]]:
    """Fold names that differ only in numbers into texts, each with the number of names in it.

    The texts are in the order in which the patterns first occur.

    >>> fold_names(["h.0.w", "h.0.b", "h.1.w", "h.1.b", "h.2.w", "norm.w"])
    [('h.0-2.w', 3), ('h.0-1.b', 2), ('norm.w', 1)]
    """
    by_pattern: dict[Pattern, list[Numbers]] = {}
    for name in names:
        parts = name.split(".")
        pattern = tuple(None if part.isdecimal() else part for part in parts)
        by_pattern.setdefault(pattern, []).append(tuple(part for part in parts if part.isdecimal()))
    return [
        (_filled(pattern, ranges), count)
        for pattern, numbers in by_pattern.items()
        for ranges, count in _products(numbers)
    ]


def _filled(pattern: Pattern, ranges: tuple[str, ...]) -> str:
    rest = iter(ranges)
    return ".".join(next(rest) if part is None else part for part in pattern)


def _products(numbers: list[Numbers]) -> list[tuple[tuple[str, ...], int]]:
    """Tuples of numbers as products of ranges; first numbers with equal tails are merged."""
    if not numbers[0]:
        return [((), 1)]
    tails: dict[str, list[Numbers]] = {}
    for head, *tail in numbers:
        tails.setdefault(head, []).append(tuple(tail))
    heads_by_tails: dict[tuple[Numbers, ...], list[str]] = {}
    for head, found in tails.items():
        heads_by_tails.setdefault(tuple(sorted(found)), []).append(head)
    return [
        ((index_ranges(tuple(sorted(heads, key=int))), *ranges), len(heads) * count)
        for found, heads in heads_by_tails.items()
        for ranges, count in _products(list(found))
    ]
