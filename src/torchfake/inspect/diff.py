"""What differs between two models or checkpoints, in names, shapes, dtypes and bytes.

Input: modules, TARGETs, or paths of checkpoints. Output: a :class:`Diff`, plain data. Invariant:
no weights are loaded: models are built as fakes, and of files only the headers are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchfake._core import arguments
from torchfake.errors import TargetError
from torchfake.inspect.base_record import Record
from torchfake.inspect.changes import Change, Line, sections, totals
from torchfake.inspect.contents import Contents, NamedTensor, Source, contents
from torchfake.inspect.describe.module_names import fold_names
from torchfake.inspect.renames import find_renamed_prefix
from torchfake.inspect.targets.options import dtype_named


@dataclass(frozen=True, repr=False)
class Diff(Record):
    """The differences between A and B."""

    a: Contents
    b: Contents
    only_a: tuple[NamedTensor, ...]
    only_b: tuple[NamedTensor, ...]
    changed: tuple[Change, ...]
    num_equal: int  # tensors that both have, equal in all that is known of both
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_a or self.only_b or self.changed)

    def to_dict(self) -> dict[str, Any]:
        """Everything as a dict for JSON."""
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
        """The differences, folded: for each kind, a heading and its lines."""
        return sections(self.only_a, self.only_b, self.changed)

    def totals(self) -> list[tuple[str, ...]]:
        """For each side: its letter, what it is, and its totals."""
        return [totals("A", self.a), totals("B", self.b)]

    def plain(self) -> str:
        """The whole result as ASCII text."""
        return str(self)


def diff(
    a: Source,
    b: Source,
    *,
    overrides_a: Sequence[str] = (),
    overrides_b: Sequence[str] = (),
    dtype: torch.dtype | str | None = None,
) -> Diff:
    """Compare two models or checkpoints, without loading either.

    Tensors are compared by name. Properties that a file does not store (which tensors are
    trainable, which are tied) are compared only between two models, and non-persistent buffers do
    not count as missing from a file. A tensor with several names is counted once, and a file
    contains it if it contains one of its names.

    Args:
        a: a module (fake, deferred or real); a TARGET, see :func:`torchfake.inspect.resolve`; or
            the path of a checkpoint: a safetensors file, an index, a file written by
            ``torch.save``, or a directory with one of these. A directory with a config but no
            weights is a TARGET.
        b: the other one.
        overrides_a: changes of the config of `a`, each as ``key=value``.
        overrides_b: the same for `b`.
        dtype: the floating-point dtype in which to build TARGETs, by default that of the config.

    Raises:
        TargetError: if either argument is none of these, or cannot be built.
        CheckpointError: if a checkpoint cannot be read.
        MissingExtraError: if transformers or safetensors is needed but not installed.

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
    for name, source in (("a", a), ("b", b)):
        if not isinstance(source, (str, os.PathLike, torch.nn.Module)):
            raise TargetError(
                f"{name} is of type {type(source).__name__}: give a module, a TARGET or the path "
                "of a checkpoint"
            )
    arguments.check_strings(overrides_a, "overrides_a")
    arguments.check_strings(overrides_b, "overrides_b")
    build_dtype = dtype_named(dtype) if isinstance(dtype, str) else dtype
    arguments.check_dtype(build_dtype, "dtype")
    in_a = contents(a, overrides=overrides_a, dtype=build_dtype)
    in_b = contents(b, overrides=overrides_b, dtype=build_dtype)
    if in_a.is_checkpoint or in_b.is_checkpoint:
        in_a, in_b = in_a.saved, in_b.saved
    return _compare(in_a, in_b)


def _compare(a: Contents, b: Contents) -> Diff:
    only_a, tied_a = _missing(a, b)
    only_b, tied_b = _missing(b, a)
    common = [(tensor, b.tensors[name]) for name, tensor in a.tensors.items() if name in b.tensors]
    compare_ties = not (a.is_checkpoint or b.is_checkpoint)
    changes = [_change(ours, theirs, compare_ties=compare_ties) for ours, theirs in common]
    changed = tuple(change for change in changes if change.what)
    notes = (
        *a.notes, *b.notes, *_tie_notes("A", "B", tied_a), *_tie_notes("B", "A", tied_b),
        *_rename_notes(a, b, only_a, only_b), *_conversion_notes(a, b), *_conversion_notes(b, a),
    )  # fmt: skip
    return Diff(a, b, only_a, only_b, changed, len(common) - len(changed), notes)


def _missing(ours: Contents, theirs: Contents) -> tuple[tuple[NamedTensor, ...], list[NamedTensor]]:
    """Our tensors that they do not have; and those that a file has under another of their names."""
    missing = [tensor for name, tensor in ours.tensors.items() if name not in theirs.tensors]
    if not (ours.is_checkpoint or theirs.is_checkpoint):
        return tuple(missing), []
    common = {t.tied_to or name for name, t in ours.tensors.items() if name in theirs.tensors}
    tied = [tensor for tensor in missing if (tensor.tied_to or tensor.name) in common]
    names = {tensor.name for tensor in tied}
    return tuple(tensor for tensor in missing if tensor.name not in names), tied


def _tie_notes(ours: str, theirs: str, tensors: list[NamedTensor]) -> Iterator[str]:
    names = [name for name, _ in fold_names(tensor.name for tensor in tensors)]
    if names:
        what = "the same tensor" if len(tensors) == 1 else "the same tensors"
        yield f"{theirs} has {what} as {', '.join(names)} of {ours} by another name"


def _rename_notes(
    a: Contents, b: Contents, only_a: Sequence[NamedTensor], only_b: Sequence[NamedTensor]
) -> Iterator[str]:
    found = find_renamed_prefix([t.name for t in only_a], [t.name for t in only_b])
    if found is None:
        return
    changes = [_change(a.tensors[x], b.tensors[y], compare_ties=False) for x, y in found.pairs]
    num_changed = sum(1 for change in changes if change.what)
    ours, theirs, total = ("A", "B", len(only_a)) if found.in_b else ("B", "A", len(only_b))
    names = (
        f"all {total} names" if len(changes) == total else f"{len(changes)} of the {total} names"
    )
    how = f"behind {(found.in_b or found.in_a)!r}"
    if found.in_a and found.in_b:
        how = f"with {found.in_b!r} for {found.in_a!r}"
    alike = f"{num_changed} of them not alike" if num_changed else "alike but for that"
    yield f"{names} that only {ours} has are in {theirs} {how}, {alike}"


def _conversion_notes(ours: Contents, theirs: Contents) -> Iterator[str]:
    if ours.is_converted and theirs.is_checkpoint:
        yield (
            f"transformers renames, merges or splits tensors when it reads a checkpoint for "
            f"{ours.source}: what differs here may be the same there"
        )


def _change(a: NamedTensor, b: NamedTensor, *, compare_ties: bool) -> Change:
    fields = ["shape", "dtype", "kind", "trainable"]
    pairs = [(field, getattr(a, field), getattr(b, field)) for field in fields]
    what = [field for field, x, y in pairs if x is not None and y is not None and x != y]
    if compare_ties and a.tied_to != b.tied_to:
        what.append("tied_to")
    return Change(a.name, tuple(what), a, b)
