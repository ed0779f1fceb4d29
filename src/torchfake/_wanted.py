"""Which elements are wanted of each storage.

Enters: operations in the recorded order, and the cells that are wanted whole. Leaves: for each cell
the stretch of elements that is to be made. Invariant: whoever makes these stretches has all that it
takes to make them.

A shard is a copy of a part of a parameter. What is wanted of the parameter is that part, so what is
wanted of all that it was computed from, element by element, is that part too, down to the draws.
What needs more (an orthogonal matrix, a norm, a draw that cannot be counted) has all it looks at.

Cells whose elements go together are in one group, and of a group one stretch is made. Stretches are
found from the end: what copies into a cell asks for so much of where it copies from. That is done
until no stretch grows any more, as a cell may be asked for again further up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from torchfake._graph import Cell, Contents, Op, Read
from torchfake._metadata import Metadata, intern
from torchfake._ops import plan_of
from torchfake._pieces import ALIGNED, Step, step_of
from torchfake._schedule import cells_of

MIN_BYTES = 256 * 1024
"""Cells up to this size are made whole."""

_COPIES = frozenset({"aten.clone.default", "aten._to_copy.default"})
_COPY_IN_PLACE = "aten.copy_.default"


def wanted_of(ops: list[Op], cells: Iterable[Cell]) -> Groups | None:
    """What is wanted of `ops` to make `cells`; None if that is all there is.

    Args:
        ops: in the recorded order, all that `cells` come from.
        cells: wanted whole.
    """
    if not any(_looks_at_part(op) for op in ops):
        return None
    groups = Groups(ops)
    groups.want_whole(cells)
    while sum(groups.ask(op) for op in reversed(ops)):
        pass  # once more
    return groups


def _looks_at_part(op: Op) -> bool:
    return any(
        2 * read.record.num_bytes <= read.contents.cell.num_bytes > MIN_BYTES for read in op.reads()
    )


class Group:
    """Cells of as many elements, of which the same stretch is made."""

    def __init__(self, length: int, itemsize: int) -> None:
        self.length = length
        self.itemsize = itemsize  # of the widest: the others have as many elements
        self.start = self.stop = 0  # empty: nobody wants any
        self.can_be_narrowed = True

    def want(self, start: int, stop: int) -> bool:
        """Make the stretch as large as that; whether it has grown."""
        if start >= stop:
            return False
        if not self.can_be_narrowed or self.length * self.itemsize <= MIN_BYTES:
            start, stop = 0, self.length
        if self.start < self.stop:
            start, stop = min(start, self.start), max(stop, self.stop)
        start, stop = aligned(start, stop, self.length)
        has_grown = (start, stop) != (self.start, self.stop)
        self.start, self.stop = start, stop
        return has_grown

    @property
    def is_whole(self) -> bool:
        return self.stop - self.start == self.length


def aligned(start: int, stop: int, length: int) -> tuple[int, int]:
    """That stretch and a few more, so that draws are those of the whole: see
    :func:`torchfake._pieces.step_of`. The last elements go together.
    """
    stop = -(-stop // ALIGNED) * ALIGNED
    if length - stop < 2 * ALIGNED:
        stop = length
    start = start // ALIGNED * ALIGNED
    if stop - start < 2 * ALIGNED:
        start = max(0, (stop - 2 * ALIGNED) // ALIGNED * ALIGNED)
    return start, stop


class Groups:
    """What is wanted of each cell."""

    def __init__(self, ops: list[Op]) -> None:
        self._of: dict[Cell, Group] = {}
        self._cells: dict[Group, set[Cell]] = {}
        self._steps: dict[float, Step] = {}
        for op in ops:
            step = step_of(op)
            if step is not None:
                self._steps[op.number] = step
                self._join(step)
        for op in ops:
            for cell, itemsize in _itemsizes(op):
                if cell not in self._of:
                    self._put(cell, Group(cell.num_bytes // itemsize, itemsize))

    def of(self, cell: Cell) -> Group:
        return self._of[cell]

    def step(self, op: Op) -> Step | None:
        return self._steps.get(op.number)

    def itemsize(self, cell: Cell) -> int:
        return cell.num_bytes // max(1, self._of[cell].length)

    def _put(self, cell: Cell, group: Group) -> None:
        self._of[cell] = group
        self._cells.setdefault(group, set()).add(cell)

    def _join(self, step: Step) -> None:
        """Put the cells of a step into one group."""
        widest = max(view.dtype.itemsize for view in step.views)
        group = self._of.get(step.views[0].cell) or Group(step.length, widest)
        self._put(step.views[0].cell, group)
        for view in step.views:
            other = self._of.get(view.cell)
            if other is group:
                continue
            moved = {view.cell} if other is None else self._cells.pop(other)
            for cell in moved:
                self._put(cell, group)
            if other is not None:
                group.can_be_narrowed &= other.can_be_narrowed and other.length == group.length
        group.itemsize = max(group.itemsize, widest)
        group.can_be_narrowed &= group.length == step.length

    def want_whole(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            group = self._of.get(cell)
            if group is not None:
                group.can_be_narrowed = False
                group.want(0, group.length)

    def ask(self, op: Op) -> bool:
        """Want what `op` takes, to do what is wanted of it; whether that is more than before."""
        if self.step(op) is not None:
            return False  # it takes what is wanted of its own group
        pair = copied(op)
        if pair is not None:
            grown = [self._want(part(read, self.rows_wanted(pair[0]))) for read in pair]
            return any(grown)
        grown = [self._want(read) for read in op.reads() if op.kept is None]
        grown += [self._want_all(cell) for cell in op.results() if _is_made_whole(cell, op)]
        return any(grown)

    def rows_wanted(self, target: Read) -> tuple[int, int]:
        """Of a copy, those rows of its target (see :func:`_part`) that are made."""
        record, group = target.record, self._of[target.contents.cell]
        if group.start >= group.stop or not record.num_bytes:
            return 0, 0
        num_rows, row = _row_of(record)
        if group.is_whole or not record.is_in_order or not self._fits(target):
            return 0, num_rows
        first = max(group.start - record.offset, 0) // row
        last = -(-min(group.stop - record.offset, num_rows * row) // row)
        return (first, last) if first < last else (0, 0)

    def only_copied(self, ops: list[Op]) -> Iterator[tuple[Op, Group]]:
        """Copies, each with a group of which nobody else takes anything."""
        takers: dict[Group, list[Op]] = {}
        for op in ops:
            step = self.step(op)
            if step is None:
                for group in {self._of[cell] for cell in cells_of(op)}:
                    takers.setdefault(group, []).append(op)
            else:  # what changes it after it was copied
                takers.setdefault(self._of[step.views[0].cell], []).append(op)
        for group, users in takers.items():
            pair = copied(users[-1])
            if pair is None or self.step(users[-1]) is not None or not group.can_be_narrowed:
                continue
            is_source = self._of[pair[1].contents.cell] is group
            is_target = self._of[pair[0].contents.cell] is group
            if is_source and not is_target and all(map(self.step, users[:-1])):
                yield users[-1], group

    def _fits(self, read: Read) -> bool:
        """Whether elements of the record are elements of the cell's group."""
        return read.record.dtype.itemsize == self.itemsize(read.contents.cell)

    def _want(self, read: Read) -> bool:
        if not self._fits(read):
            return bool(read.record.num_bytes) and self._want_all(read.contents.cell)
        return self._of[read.contents.cell].want(*extent_of(read.record))

    def _want_all(self, cell: Cell) -> bool:
        group = self._of[cell]
        return group.want(0, group.length)


def _itemsizes(op: Op) -> Iterable[tuple[Cell, int]]:
    for made in op.made:
        yield made.cell, made.record.dtype.itemsize
    for read in op.reads():
        yield read.contents.cell, read.record.dtype.itemsize
    for cell in op.written:
        yield cell, 1  # if nobody else has said


def _is_made_whole(cell: Cell, op: Op) -> bool:
    """Whether an operation that is no step leaves all of `cell`, not only what it looks at."""
    return op.kept is not None or all(read.contents.cell is not cell for read in op.reads())


def extent_of(record: Metadata) -> tuple[int, int]:
    """The elements of a storage from the first to the last that is looked at."""
    if 0 in record.size:
        return record.offset, record.offset
    steps = zip(record.size, record.stride, strict=True)
    return record.offset, record.offset + 1 + sum((n - 1) * step for n, step in steps)


def copied(op: Op) -> tuple[Read, Read] | None:
    """Target and source of an operation that copies elements to other places, one to one."""
    if op.kept is not None or op.refusal is not None or not hasattr(op.func, "_schema"):
        return None
    name = plan_of(op.func).name
    if name == _COPY_IN_PLACE:
        target, source = op.args[:2]
    elif name in _COPIES and len(op.made) == 1:
        made = op.made[0]
        target, source = Read(Contents(made.cell), made.record), op.args[0]
    else:
        return None
    if type(target) is not Read or type(source) is not Read:
        return None
    one, other = target.record, source.record
    if one.size != other.size or not one.size or not _is_plain(one) or not _is_plain(other):
        return None
    return target, source


def _is_plain(record: Metadata) -> bool:
    return not record.conj and not record.neg and record.layout == torch.strided


def _row_of(record: Metadata) -> tuple[int, int]:
    """Along the first dimension that is longer than 1: its length, and elements of each row."""
    dim = _long_dim(record)
    return record.size[dim], math.prod(record.size[dim + 1 :])


def _long_dim(record: Metadata) -> int:
    return next((d for d, length in enumerate(record.size) if length != 1), 0)


def part(read: Read, rows: tuple[int, int], dim: int | None = None) -> Read:
    """The view of those rows, from the first to before the last; along `dim`, if that is given."""
    record, (first, last) = read.record, rows
    dim = _long_dim(record) if dim is None else dim
    size = (*record.size[:dim], last - first, *record.size[dim + 1 :])
    offset = record.offset + first * record.stride[dim]
    part = intern(size, record.stride, offset, record.dtype, record.device)
    return Read(read.contents, part)
