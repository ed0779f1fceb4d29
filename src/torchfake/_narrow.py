"""Operations on no more elements than somebody wants.

Enters: operations in the recorded order, and the cells that are wanted. Leaves: the same operations
on smaller cells. Invariant: every element that is left has the bits it had; draws begin as much
further on in their stream as elements are left out before them.

A shard is a copy of a part of a parameter. What is wanted of the parameter is that part, so what is
wanted of all that it was computed from, element by element, is that part too, down to the draws.
What needs more (an orthogonal matrix, a norm, a draw that cannot be counted) has all it looks at.

Cells whose elements go together are in one group, and of a group one stretch is made. Stretches are
found from the end: what copies into a cell asks for so much of where it copies from. That is done
until no stretch grows any more, as a cell may be asked for again further up.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch

from torchfake._graph import Cell, Contents, Made, Op, Read
from torchfake._metadata import Metadata, intern
from torchfake._ops import plan_of
from torchfake._pieces import ALIGNED, Step, is_factory, step_of
from torchfake._schedule import cells_of
from torchfake._streams import Draw

MIN_BYTES = 256 * 1024
"""Cells up to this size are made whole."""

_COPIES = frozenset({"aten.clone.default", "aten._to_copy.default"})
_COPY_IN_PLACE = "aten.copy_.default"


def narrowed(ops: list[Op], wanted: Iterable[Cell]) -> list[Op]:
    """`ops` on those elements that the cells `wanted` take to be made whole.

    Args:
        ops: in the recorded order, all that `wanted` come from; they are not changed.
        wanted: these stay as they are.
    """
    if not any(_looks_at_part(op) for op in ops):
        return ops
    groups = _Groups(ops)
    groups.want_whole(wanted)
    while sum(groups.ask(op) for op in reversed(ops)):
        pass  # once more
    return _Rewriting(groups).all_of(ops)


def _looks_at_part(op: Op) -> bool:
    return any(
        2 * read.record.num_bytes <= read.contents.cell.num_bytes > MIN_BYTES for read in op.reads()
    )


class _Group:
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
        start, stop = _aligned(start, stop, self.length)
        has_grown = (start, stop) != (self.start, self.stop)
        self.start, self.stop = start, stop
        return has_grown

    @property
    def is_whole(self) -> bool:
        return self.stop - self.start == self.length


def _aligned(start: int, stop: int, length: int) -> tuple[int, int]:
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


class _Groups:
    """What is wanted of each cell."""

    def __init__(self, ops: list[Op]) -> None:
        self._of: dict[Cell, _Group] = {}
        self._cells: dict[_Group, set[Cell]] = {}
        self._steps: dict[int, Step] = {}
        for op in ops:
            step = step_of(op)
            if step is not None:
                self._steps[op.number] = step
                self._join(step)
        for op in ops:
            for cell, itemsize in _itemsizes(op):
                if cell not in self._of:
                    self._put(cell, _Group(cell.num_bytes // itemsize, itemsize))

    def of(self, cell: Cell) -> _Group:
        return self._of[cell]

    def step(self, op: Op) -> Step | None:
        return self._steps.get(op.number)

    def itemsize(self, cell: Cell) -> int:
        return cell.num_bytes // max(1, self._of[cell].length)

    def _put(self, cell: Cell, group: _Group) -> None:
        self._of[cell] = group
        self._cells.setdefault(group, set()).add(cell)

    def _join(self, step: Step) -> None:
        """Put the cells of a step into one group."""
        widest = max(view.dtype.itemsize for view in step.views)
        group = self._of.get(step.views[0].cell) or _Group(step.length, widest)
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
            grown = [self._want(_part(read, self.rows_wanted(pair[0]))) for read in pair]
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

    def _fits(self, read: Read) -> bool:
        """Whether elements of the record are elements of the cell's group."""
        return read.record.dtype.itemsize == self.itemsize(read.contents.cell)

    def _want(self, read: Read) -> bool:
        if not self._fits(read):
            return bool(read.record.num_bytes) and self._want_all(read.contents.cell)
        return self._of[read.contents.cell].want(*_extent(read.record))

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


def _extent(record: Metadata) -> tuple[int, int]:
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


def _part(read: Read, rows: tuple[int, int]) -> Read:
    """The view of those rows, from the first to before the last."""
    record, (first, last) = read.record, rows
    dim = _long_dim(record)
    size = (*record.size[:dim], last - first, *record.size[dim + 1 :])
    offset = record.offset + first * record.stride[dim]
    part = intern(size, record.stride, offset, record.dtype, record.device)
    return Read(read.contents, part)


def _later(draw: Draw, step: Step, first: int, last: int) -> Draw:
    """The draws of those elements alone."""
    assert draw.taken is not None
    skipped = (first - step.start) * step.words
    taken = draw.taken - skipped if last == step.stop else (last - first) * step.words
    return Draw(draw.anchor, draw.words + skipped, taken, draw.device)


class _Rewriting:
    """Operations on the cells that are left."""

    def __init__(self, groups: _Groups) -> None:
        self._groups = groups
        self._smaller: dict[Cell, Cell] = {}

    def all_of(self, ops: list[Op]) -> list[Op]:
        return [new for op in ops if (new := self._op(op)) is not None]

    def _op(self, op: Op) -> Op | None:
        """`op` on smaller cells; None if nothing is wanted of it."""
        step = self._groups.step(op)
        if step is not None:
            return self._of_step(op, step)
        pair = copied(op)
        if pair is not None:
            return self._of_copy(op, *pair)
        if op.kept is not None or all(self._groups.of(cell).is_whole for cell in cells_of(op)):
            return op
        return self._with(op, [self._shifted(arg) for arg in op.args], op.made)

    def _of_step(self, op: Op, step: Step) -> Op | None:
        group = self._groups.of(step.views[0].cell)
        first, last = step.within(group.start, group.stop)
        if group.is_whole:
            return op
        if first >= last:
            return None
        made = tuple(
            Made(each.place, self._cell(each.cell), self._flat(each.record, first, last, group))
            for each in op.made
        )
        if is_factory(op):  # which looks at a shape alone, of whatever tensor
            own = Read(Contents(made[0].cell), made[0].record)
            args = [own if type(arg) is Read else arg for arg in op.args]
        else:
            args = [self._stretch(arg, first, last, group) for arg in op.args]
        new = self._with(op, args, made)
        if op.draw is not None:
            new.draw = _later(op.draw, step, first, last)
        assert step_of(new) is not None
        return new

    def _of_copy(self, op: Op, target: Read, source: Read) -> Op | None:
        rows = self._groups.rows_wanted(target)
        if rows[0] >= rows[1] and target.record.num_bytes:
            return None
        if all(self._groups.of(cell).is_whole for cell in cells_of(op)):
            return op
        new_target, new_source = (self._shifted(_part(r, rows)) for r in (target, source))
        if op.made:
            made = (Made(op.made[0].place, new_target.contents.cell, new_target.record),)
            return self._with(op, [new_source, *op.args[1:]], made)
        return self._with(op, [new_target, new_source, *op.args[2:]], ())

    def _with(self, op: Op, args: list[Any], made: tuple[Made, ...]) -> Op:
        new = copy.copy(op)
        new.args, new.made = tuple(args), made
        new.kwargs = {name: self._shifted(arg) for name, arg in op.kwargs.items()}
        new.written = tuple(self._cell(cell) for cell in op.written)
        return new

    def _cell(self, cell: Cell) -> Cell:
        """What is made of a cell."""
        group = self._groups.of(cell)
        if group.is_whole:
            return cell
        if cell not in self._smaller:
            num_bytes = (group.stop - group.start) * self._groups.itemsize(cell)
            self._smaller[cell] = Cell(num_bytes, cell.device)
        return self._smaller[cell]

    def _stretch(self, arg: Any, first: int, last: int, group: _Group) -> Any:
        if type(arg) is not Read:
            return arg
        record = self._flat(arg.record, first, last, group)
        return Read(Contents(self._cell(arg.contents.cell)), record)

    def _flat(self, record: Metadata, first: int, last: int, group: _Group) -> Metadata:
        place = first - group.start
        return intern((last - first,), (1,), place, record.dtype, record.device)

    def _shifted(self, arg: Any) -> Any:
        """An argument that looks at as much as before, of what is made."""
        if type(arg) in (list, tuple):
            return [self._shifted(item) for item in arg]
        if type(arg) is not Read or self._groups.of(arg.contents.cell).is_whole:
            return arg
        cell, record = arg.contents.cell, arg.record
        offset = max(0, record.offset - self._groups.of(cell).start)  # less if it is empty
        place = record.size, record.stride, offset, record.dtype, record.device
        moved = intern(*place, record.layout, record.conj, record.neg)
        return Read(Contents(self._cell(cell)), moved)
