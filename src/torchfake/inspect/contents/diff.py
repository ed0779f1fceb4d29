"""The differences between two models or checkpoints, in names, shapes, dtypes and bytes.

Input: modules, TARGETs, or paths of checkpoints. Output: a :class:`Diff`, plain data. Invariant:
no weights are loaded: models are built as fakes, and only the headers of files are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchfake._core import arguments
from torchfake.errors import TargetError, listed
from torchfake.inspect.contents.changes import Change, Line, num_distinct, sections, totals
from torchfake.inspect.contents.configs import ConfigChange, changes_text, config_changes
from torchfake.inspect.contents.renames import RenamedPrefix, find_renamed_prefix
from torchfake.inspect.contents.tensors import Contents, NamedTensor, Source, contents
from torchfake.inspect.records.module_names import fold_names
from torchfake.inspect.records.record import Record
from torchfake.inspect.records.units import bytes_text, count_text, counts_text, number_text
from torchfake.inspect.targets.options import dtype_named

_WORDS = {"trainable": "requires_grad", "tied_to": "tie"}
"""What a property of a tensor is called in a sentence, if not by its name."""


@dataclass(frozen=True, repr=False)
class Diff(Record):
    """The differences between A and B."""

    a: Contents
    b: Contents
    only_a: tuple[NamedTensor, ...]
    only_b: tuple[NamedTensor, ...]
    changed: tuple[Change, ...]
    num_equal: int  # tensors that both have, equal in all properties known of both
    notes: tuple[str, ...]
    prefix: RenamedPrefix | None = None
    """A prefix of names that differs; such tensors are compared, and listed by their name in A."""
    config: tuple[ConfigChange, ...] = ()  # the keys that differ, where both have a config

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.config or self._tensors_differ)

    @property
    def _tensors_differ(self) -> bool:
        return bool(self.only_a or self.only_b or self.changed or self.prefix)

    @property
    def headline(self) -> str:
        """The answer in one line: ``identical: ...``, or what differs."""
        alike = number_text(self.num_equal, "tensor")
        if self.is_equal:
            size = f"{count_text(self.a.num_values)} values, {bytes_text(self.a.size_bytes)}"
            unread = self.a.is_checkpoint and self.b.is_checkpoint
            return f"identical: {alike}, {size}{'; values were not compared' * unread}"
        if not self._tensors_differ:
            before = " before that" * bool(self._formats)
            return f"{self._formats}the same {alike}{before}; {changes_text(self.config)}"
        return self._different_tensors(alike)

    @property
    def _formats(self) -> str:
        """``different: 9.08 GB in fp8 in A, ...; ``; "" where both have the same format."""
        if (self.a.format, self.a.format_bytes) == (self.b.format, self.b.format_bytes):
            return ""
        return f"different: {_size_text(self.a)} in A, {_size_text(self.b)} in B; "

    @property
    def _changed_in(self) -> list[tuple[str, list[Change]]]:
        """The tensors that both have and that differ, by what differs, as text."""
        found: dict[str, list[Change]] = {}
        for change in self.changed:
            what = [_WORDS.get(each, each) for each in change.what]
            found.setdefault(listed(what, "and"), []).append(change)
        return [*found.items()]

    def _different_tensors(self, alike: str) -> str:
        numbers = (
            (num_distinct(self.only_a), "only in A"),
            (num_distinct(self.only_b), "only in B"),
            *((num_distinct(each), f"of another {what}") for what, each in self._changed_in),
        )
        parts = counts_text(numbers, "tensor")
        renamed = "" if self.prefix is None else self.prefix.text
        if not parts and self.config:
            return f"the same {alike} but for {renamed}; {changes_text(self.config)}"
        if not parts:
            return f"identical but for {renamed}: {alike}"
        differ = f"different: {parts}" + f"; {self.num_equal:,} alike" * bool(self.num_equal)
        return f"{differ}, with {renamed}" if renamed else differ

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
            "prefix": None
            if self.prefix is None
            else {"a": self.prefix.in_a, "b": self.prefix.in_b, "names": len(self.prefix.pairs)},
            "headline": self.headline,
            "config": [change._asdict() for change in self.config],
            "notes": list(self.notes),
        }

    def sections(self) -> list[tuple[str, int, list[Line]]]:
        """The differences, folded: for each kind, a heading, the number of tensors, the lines."""
        lines = [Line(change.key, change.values) for change in self.config]
        of_config = [("configs", len(lines), lines)] if lines else []
        return [*of_config, *sections(self.only_a, self.only_b, self.changed)]

    def totals(self) -> list[tuple[str, ...]]:
        """For each side a row: its letter, its source, and its totals."""
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

    Tensors are compared by name, their values are not; configs by key, where both have one.
    Properties that a file does not store (which tensors are
    trainable, which are tied) are compared only between two models, and non-persistent buffers do
    not count as missing from a file. A tensor with several names is counted once, and a file
    contains it if it contains one of its names.

    Args:
        a: a module (fake, deferred or real); a TARGET, see :func:`torchfake.inspect.resolve`; or
            the path of a checkpoint: a safetensors file, an index, a file written by
            ``torch.save``, or a directory with one of these. A directory with a config but no
            weights is a TARGET.
        b: the other model or checkpoint.
        overrides_a: changes of the config of `a`, each as ``key=value``.
        overrides_b: changes of the config of `b`, each as ``key=value``.
        dtype: the floating-point dtype in which to build TARGETs, by default that of the config.

    Raises:
        TargetError: if `a` or `b` is none of these, or cannot be built.
        CheckpointError: if a checkpoint cannot be read.
        MissingExtraError: if transformers or safetensors is needed but not installed.

    >>> def mlp(width):
    ...     return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 4))
    >>> print(diff(mlp(8), mlp(16)))
    different: 3 tensors of another shape; 1 alike
    <BLANKLINE>
    A  Sequential  76 values   304 B  4 tensors
    B  Sequential  148 values  592 B  4 tensors
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
    return compare(in_a, in_b)


def compare(a: Contents, b: Contents) -> Diff:
    """Compare the tensors of two models or checkpoints, and their configs."""
    only_a, tied_a = _missing(a, b)
    only_b, tied_b = _missing(b, a)
    common = [(tensor, b.tensors[name]) for name, tensor in a.tensors.items() if name in b.tensors]
    compare_ties = not (a.is_checkpoint or b.is_checkpoint)
    changes = [_change(ours, theirs, compare_ties=compare_ties) for ours, theirs in common]
    prefix = find_renamed_prefix([t.name for t in only_a], [t.name for t in only_b])
    for x, y in () if prefix is None else prefix.pairs:
        changes.append(_change(a.tensors[x], b.tensors[y], compare_ties=False))
    changed = tuple(change for change in changes if change.what)
    paired = set() if prefix is None else {name for pair in prefix.pairs for name in pair}
    notes = (
        *a.notes, *b.notes, *_tie_notes("A", "B", tied_a), *_tie_notes("B", "A", tied_b),
        *_conversion_notes(a, b), *_conversion_notes(b, a),
    )  # fmt: skip
    return Diff(
        a,
        b,
        tuple(tensor for tensor in only_a if tensor.name not in paired),
        tuple(tensor for tensor in only_b if tensor.name not in paired),
        changed,
        num_distinct(change for change in changes if not change.what),
        notes,
        prefix,
        config_changes(a.config, b.config),
    )


def _size_text(side: Contents) -> str:
    """The bytes of a model in the format of its config."""
    if not side.format:
        return f"{bytes_text(side.size_bytes)} unquantized"
    size = "" if side.format_bytes is None else f"{bytes_text(side.format_bytes)} "
    return f"{size}in {side.format}"


def _missing(ours: Contents, theirs: Contents) -> tuple[tuple[NamedTensor, ...], list[NamedTensor]]:
    """Tensors of `ours` that `theirs` lacks; and for files, those it has under another name."""
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
