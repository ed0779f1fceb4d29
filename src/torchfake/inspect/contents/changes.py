"""Differences between two models, grouped: tensors that differ in the same way are one line.

Input: tensors that one side lacks, and those that differ. Output: headings with lines, and a row of
totals for each side. Invariant: tensors are one line only if their names differ in numbers alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchfake.inspect.contents.tensors import Contents, NamedTensor
from torchfake.inspect.records.module_names import fold_names


@dataclass(frozen=True)
class Change:
    """A tensor that both have, and that differs."""

    name: str
    what: tuple[str, ...]  # of "shape", "dtype", "kind", "trainable", "tied_to"
    a: NamedTensor
    b: NamedTensor

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        both = {"a": self.a.to_dict(), "b": self.b.to_dict()}
        return {"name": self.name, "what": list(self.what), **both}


class Line(NamedTuple):
    """One line of a section: a tensor, or several whose names differ in numbers alone."""

    name: str
    text: str  # what it is, or what it is in A and in B
    num_tensors: int  # that it stands for


def sections(
    only_a: Iterable[NamedTensor], only_b: Iterable[NamedTensor], changed: Iterable[Change]
) -> list[tuple[str, list[Line]]]:
    """A heading and its lines for each kind of difference that there is."""
    found = [
        ("only in A", _lines((t.name, _tensor_text(t)) for t in only_a)),
        ("only in B", _lines((t.name, _tensor_text(t)) for t in only_b)),
        ("different", _lines((c.name, _change_text(c)) for c in changed)),
    ]
    return [(heading, lines) for heading, lines in found if lines]


def _lines(named_texts: Iterable[tuple[str, str]]) -> list[Line]:
    names_by_text: dict[str, list[str]] = {}
    for name, text in named_texts:
        names_by_text.setdefault(text, []).append(name)
    lines = [
        Line(name, text, count)
        for text, names in names_by_text.items()
        for name, count in fold_names(names)
    ]
    return sorted(lines, key=_sort_key)


def _sort_key(line: Line) -> list[tuple[bool, int, str]]:
    """By name, with the numbers in it as numbers."""
    parts = re.split(r"(\d+)", line.name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _tensor_text(tensor: NamedTensor) -> str:
    parts = [_shape_text(tensor), tensor.dtype or "unknown dtype"]
    if tensor.kind not in (None, "parameter"):
        parts.append(str(tensor.kind))
    if tensor.tied_to is not None:
        parts.append(f"tied to {tensor.tied_to}")
    return " ".join(parts)


def _shape_text(tensor: NamedTensor) -> str:
    return "unknown shape" if tensor.shape is None else f"[{', '.join(map(str, tensor.shape))}]"


def _change_text(change: Change) -> str:
    texts = (
        f"{_field_text(change.a, field)} -> {_field_text(change.b, field)}" for field in change.what
    )
    return ", ".join(texts)


def _field_text(tensor: NamedTensor, field: str) -> str:
    if field == "shape":
        return _shape_text(tensor)
    if field == "trainable":
        return "trainable" if tensor.trainable else "frozen"
    if field == "tied_to":
        return "not tied" if tensor.tied_to is None else f"tied to {tensor.tied_to}"
    return str(getattr(tensor, field))


def totals(letter: str, side: Contents) -> tuple[str, ...]:
    """A side's letter, what it is, and how much there is of it."""
    tensors = "1 tensor" if side.num_tensors == 1 else f"{side.num_tensors:,} tensors"
    return (
        letter,
        side.source,
        f"{side.num_values:,} values",
        f"{side.size_bytes:,} bytes",
        tensors,
    )
