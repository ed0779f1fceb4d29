"""Groups the differences between two models: tensors that differ in the same way share a line.

Input: tensors that one side lacks, and tensors that differ. Output: headings with lines, and a row
of totals for each side. Invariant: tensors share a line only if their names differ only in numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchfake.inspect.contents.tensors import Contents, NamedTensor
from torchfake.inspect.records.module_names import fold_names
from torchfake.inspect.records.units import bytes_text


@dataclass(frozen=True)
class Change:
    """A tensor that both sides have, and that differs."""

    name: str
    what: tuple[str, ...]  # what differs: "shape", "dtype", "kind", "trainable", "tied_to"
    a: NamedTensor
    b: NamedTensor

    @property
    def tensor(self) -> tuple[str, str]:
        """What tells the tensor from others, whichever of its names this is, in A and in B."""
        return self.a.tensor, self.b.tensor

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        both = {"a": self.a.to_dict(), "b": self.b.to_dict()}
        return {"name": self.name, "what": list(self.what), **both}


class Line(NamedTuple):
    """One line of a section: a tensor, or several whose names differ only in numbers."""

    name: str
    text: str  # the tensor's description, or those in A and in B


def num_distinct(found: Iterable[NamedTensor | Change]) -> int:
    """The number of tensors, each counted once, whatever the number of its names."""
    return len({each.tensor for each in found})


def sections(
    only_a: Sequence[NamedTensor], only_b: Sequence[NamedTensor], changed: Sequence[Change]
) -> list[tuple[str, int, list[Line]]]:
    """For each kind of difference that occurs, a heading, the number of tensors, and the lines."""
    found = [
        ("only in A", num_distinct(only_a), _lines((t.name, _tensor_text(t)) for t in only_a)),
        ("only in B", num_distinct(only_b), _lines((t.name, _tensor_text(t)) for t in only_b)),
        ("different", num_distinct(changed), _lines((c.name, _change_text(c)) for c in changed)),
    ]
    return [(heading, number, lines) for heading, number, lines in found if lines]


def _lines(named_texts: Iterable[tuple[str, str]]) -> list[Line]:
    names_by_text: dict[str, list[str]] = {}
    for name, text in named_texts:
        names_by_text.setdefault(text, []).append(name)
    lines = [
        Line(name, text) for text, names in names_by_text.items() for name, _ in fold_names(names)
    ]
    return sorted(lines, key=_sort_key)


def _sort_key(line: Line) -> list[tuple[bool, int, str]]:
    """Key that sorts lines by name, numbers in the name by their value."""
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
    """A row for a side: its letter, its source, and the totals of its tensors."""
    tensors = "1 tensor" if side.num_tensors == 1 else f"{side.num_tensors:,} tensors"
    return (
        letter,
        side.source,
        f"{side.num_values:,} values",
        bytes_text(side.size_bytes),
        tensors,
    )
