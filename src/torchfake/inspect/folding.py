"""Names that differ in numbers alone, as one: layers.0-31.mlp.up_proj.weight.

Enters: names of tensors. Leaves: texts that stand for several. Invariant: a text stands for every
number of each of its ranges with every one of the others, and all of those were there.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchfake.inspect.tree import ranges

Numbers = tuple[str, ...]


def folded(names: Iterable[str]) -> list[tuple[str, int]]:
    """Each text with how many names it stands for, in the order of their first.

    >>> folded(["h.0.w", "h.0.b", "h.1.w", "h.1.b", "h.2.w", "norm.w"])
    [('h.0-2.w', 3), ('h.0-1.b', 2), ('norm.w', 1)]
    """
    forms: dict[tuple[str | None, ...], list[Numbers]] = {}
    for name in names:
        parts = name.split(".")
        form = tuple(None if part.isdecimal() else part for part in parts)
        forms.setdefault(form, []).append(tuple(part for part in parts if part.isdecimal()))
    return [
        (_filled(form, said), count)
        for form, numbers in forms.items()
        for said, count in _products(numbers)
    ]


def _filled(form: tuple[str | None, ...], said: tuple[str, ...]) -> str:
    rest = iter(said)
    return ".".join(next(rest) if part is None else part for part in form)


def _products(numbers: list[Numbers]) -> list[tuple[tuple[str, ...], int]]:
    """The same tuples as products of ranges: equal tails are drawn together, from the left."""
    if not numbers[0]:
        return [((), 1)]
    tails: dict[str, list[Numbers]] = {}
    for head, *tail in numbers:
        tails.setdefault(head, []).append(tuple(tail))
    heads: dict[tuple[Numbers, ...], list[str]] = {}
    for head, found in tails.items():
        heads.setdefault(tuple(sorted(found)), []).append(head)
    return [
        ((ranges(tuple(sorted(alike, key=int))), *said), len(alike) * count)
        for found, alike in heads.items()
        for said, count in _products(list(found))
    ]
