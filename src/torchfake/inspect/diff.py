"""What differs between two models or checkpoints, in names, shapes, dtypes and bytes.

Enters: modules, TARGETs, or paths of checkpoints. Leaves: a :class:`Diff`, plain data, and text of
it. Invariant: nothing is loaded: models are built as fakes, and of files the headers are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from torchfake.inspect.build import dtype_named
from torchfake.inspect.contents import Contents, NamedTensor, Source, contents
from torchfake.inspect.folding import folded
from torchfake.inspect.renames import renamed
from torchfake.inspect.shown import Shown


@dataclass(frozen=True)
class Change:
    """A tensor that both have, and not alike."""

    name: str
    what: tuple[str, ...]  # of "shape", "dtype", "kind", "trainable", "tied_to"
    a: NamedTensor
    b: NamedTensor

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        both = {"a": self.a.to_dict(), "b": self.b.to_dict()}
        return {"name": self.name, "what": list(self.what), **both}


class Line(NamedTuple):
    """One line of a section: a tensor, or several whose names differ in numbers alone."""

    name: str
    text: str  # what it is, or what it was and is
    num_tensors: int  # that it stands for


@dataclass(frozen=True, repr=False)
class Diff(Shown):
    """What differs between A and B."""

    a: Contents
    b: Contents
    only_a: tuple[NamedTensor, ...]
    only_b: tuple[NamedTensor, ...]
    changed: tuple[Change, ...]
    num_equal: int  # tensors of both, alike in all that is known of both
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_a or self.only_b or self.changed)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "is_equal": self.is_equal,
            "num_equal": self.num_equal,
            "only_a": [tensor.to_dict() for tensor in self.only_a],
            "only_b": [tensor.to_dict() for tensor in self.only_b],
            "changed": [change.to_dict() for change in self.changed],
            "notes": list(self.notes),
        }

    def sections(self) -> list[tuple[str, list[Line]]]:
        """What differs, folded: a heading and its lines for each kind of difference there is."""
        found = [
            ("only in A", _lines((t.name, _described(t)) for t in self.only_a)),
            ("only in B", _lines((t.name, _described(t)) for t in self.only_b)),
            ("different", _lines((c.name, _contrasted(c)) for c in self.changed)),
        ]
        return [(heading, lines) for heading, lines in found if lines]

    def totals(self) -> list[tuple[str, ...]]:
        """For each side: its letter, what it is, and how much of it there is."""
        return [_total("A", self.a), _total("B", self.b)]

    def plain(self) -> str:
        """All of it as ASCII text."""
        lines = list(_aligned(self.totals()))
        for heading, found in self.sections():
            count = sum(line.num_tensors for line in found)
            lines += ["", f"{heading} ({count:,})"]
            lines += _aligned([("", line.name, line.text) for line in found])
        lines += ["", f"alike ({self.num_equal:,})"]
        lines += [f"note  {note}" for note in self.notes]
        return "\n".join(lines).encode("ascii", "backslashreplace").decode()


def diff(
    a: Source,
    b: Source,
    *,
    overrides_a: Sequence[str] = (),
    overrides_b: Sequence[str] = (),
    dtype: torch.dtype | str | None = None,
) -> Diff:
    """Compare two models or checkpoints, without loading either.

    Tensors are compared by name. What a file does not say (which tensors are trained, which are
    tied) is compared between two models alone, and buffers that are not saved are not missed in a
    file. A tensor of several names is counted once, and is in a file if one of them is.

    Args:
        a: a module (fake, deferred or real); a TARGET, see :func:`torchfake.inspect.resolve`; or
            the path of a checkpoint: a safetensors file, an index, a file of ``torch.save``, or a
            directory with one of these. A directory with a config and no weights is a TARGET.
        b: the same.
        overrides_a: ``key=value`` each, for the config of `a`.
        overrides_b: the same for `b`.
        dtype: the floating point dtype to build TARGETs in; that of the config, if not given.

    Raises:
        TargetError: if either is neither, or cannot be built.
        CheckpointError: if a checkpoint cannot be read.
        MissingExtraError: if transformers or safetensors is needed and not installed.

    >>> def mlp(width):
    ...     return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 4))
    >>> print(diff(mlp(8), mlp(16)))
    A  Sequential  76 values   304 bytes  4 tensors
    B  Sequential  148 values  592 bytes  4 tensors
    <BLANKLINE>
    different (3)
      0.bias    [8] -> [16]
      0.weight  [8, 4] -> [16, 4]
      1.weight  [4, 8] -> [4, 16]
    <BLANKLINE>
    alike (1)
    """
    of = dtype_named(dtype) if isinstance(dtype, str) else dtype
    in_a = contents(a, overrides=overrides_a, dtype=of)
    in_b = contents(b, overrides=overrides_b, dtype=of)
    if in_a.is_checkpoint or in_b.is_checkpoint:
        in_a, in_b = in_a.saved, in_b.saved
    return _compared(in_a, in_b)


def _compared(a: Contents, b: Contents) -> Diff:
    only_a, tied_a = _only(a, b)
    only_b, tied_b = _only(b, a)
    common = [(tensor, b.tensors[name]) for name, tensor in a.tensors.items() if name in b.tensors]
    both_say = not (a.is_checkpoint or b.is_checkpoint)
    changes = [_change(ours, theirs, both_say=both_say) for ours, theirs in common]
    changed = tuple(change for change in changes if change.what)
    notes = (
        *a.notes, *b.notes, *_tied("A", "B", tied_a), *_tied("B", "A", tied_b),
        *_renamed(a, b, only_a, only_b), *_converted(a, b), *_converted(b, a),
    )  # fmt: skip
    return Diff(a, b, only_a, only_b, changed, len(common) - len(changed), notes)


def _only(ours: Contents, theirs: Contents) -> tuple[tuple[NamedTensor, ...], list[NamedTensor]]:
    """What only one has; and names that it has for tensors that are in a file by another name."""
    missing = [tensor for name, tensor in ours.tensors.items() if name not in theirs.tensors]
    if not (ours.is_checkpoint or theirs.is_checkpoint):
        return tuple(missing), []
    there = {t.tied_to or name for name, t in ours.tensors.items() if name in theirs.tensors}
    tied = [tensor for tensor in missing if (tensor.tied_to or tensor.name) in there]
    names = {tensor.name for tensor in tied}
    return tuple(tensor for tensor in missing if tensor.name not in names), tied


def _tied(ours: str, theirs: str, tensors: list[NamedTensor]) -> Iterator[str]:
    names = [name for name, _ in folded(tensor.name for tensor in tensors)]
    if names:
        what = "the same tensor" if len(tensors) == 1 else "the same tensors"
        yield f"{theirs} has {what} as {', '.join(names)} of {ours} by another name"


def _renamed(
    a: Contents, b: Contents, only_a: Sequence[NamedTensor], only_b: Sequence[NamedTensor]
) -> Iterator[str]:
    found = renamed([tensor.name for tensor in only_a], [tensor.name for tensor in only_b])
    if found is None:
        return
    changes = [_change(a.tensors[x], b.tensors[y], both_say=False) for x, y in found.pairs]
    num_other = sum(1 for change in changes if change.what)
    ours, theirs, total = ("A", "B", len(only_a)) if found.in_b else ("B", "A", len(only_b))
    names = (
        f"all {total} names" if len(changes) == total else f"{len(changes)} of the {total} names"
    )
    how = f"behind {(found.in_b or found.in_a)!r}"
    if found.in_a and found.in_b:
        how = f"with {found.in_b!r} for {found.in_a!r}"
    alike = f"{num_other} of them not alike" if num_other else "alike but for that"
    yield f"{names} that only {ours} has are in {theirs} {how}, {alike}"


def _converted(ours: Contents, theirs: Contents) -> Iterator[str]:
    if ours.is_converted and theirs.is_checkpoint:
        yield (
            f"transformers renames, merges or splits tensors when it reads a checkpoint for "
            f"{ours.source}: what differs here may be the same there"
        )


def _change(a: NamedTensor, b: NamedTensor, *, both_say: bool) -> Change:
    fields = ["shape", "dtype", "kind", "trainable"]
    pairs = [(field, getattr(a, field), getattr(b, field)) for field in fields]
    what = [field for field, x, y in pairs if x is not None and y is not None and x != y]
    if both_say and a.tied_to != b.tied_to:
        what.append("tied_to")
    return Change(a.name, tuple(what), a, b)


# Text.


def _lines(described: Iterator[tuple[str, str]]) -> list[Line]:
    names: dict[str, list[str]] = {}
    for name, text in described:
        names.setdefault(text, []).append(name)
    lines = [Line(name, text, n) for text, found in names.items() for name, n in folded(found)]
    return sorted(lines, key=_in_order)


def _in_order(line: Line) -> list[tuple[bool, int, str]]:
    """By name, the numbers in it as numbers."""
    parts = re.split(r"(\d+)", line.name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _described(tensor: NamedTensor) -> str:
    words = [_shape(tensor), tensor.dtype or "unknown dtype"]
    if tensor.kind not in (None, "parameter"):
        words.append(str(tensor.kind))
    if tensor.tied_to is not None:
        words.append(f"tied to {tensor.tied_to}")
    return " ".join(words)


def _shape(tensor: NamedTensor) -> str:
    return "unknown shape" if tensor.shape is None else f"[{', '.join(map(str, tensor.shape))}]"


def _contrasted(change: Change) -> str:
    texts = (f"{_said(change.a, what)} -> {_said(change.b, what)}" for what in change.what)
    return ", ".join(texts)


def _said(tensor: NamedTensor, what: str) -> str:
    if what == "shape":
        return _shape(tensor)
    if what == "trainable":
        return "trainable" if tensor.trainable else "frozen"
    if what == "tied_to":
        return "not tied" if tensor.tied_to is None else f"tied to {tensor.tied_to}"
    return str(getattr(tensor, what))


def _total(letter: str, side: Contents) -> tuple[str, ...]:
    tensors = "1 tensor" if side.num_tensors == 1 else f"{side.num_tensors:,} tensors"
    return (
        letter,
        side.source,
        f"{side.num_values:,} values",
        f"{side.size_bytes:,} bytes",
        tensors,
    )


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
