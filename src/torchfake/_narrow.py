"""Operations on no more elements than somebody wants.

Enters: operations in the recorded order, and the cells that are wanted. Leaves: the same operations
on smaller cells. Invariant: every element that is left has the bits it had; draws begin as much
further on in their stream as elements are left out before them.

Of columns of a matrix, what lies in between is drawn too, for that is quicker than to jump from row
to row; but never is more than a block of it there at once.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from torchfake._graph import Cell, Contents, Made, Op, Read
from torchfake._metadata import Metadata, intern
from torchfake._pieces import Step, is_factory, step_of
from torchfake._schedule import cells_of
from torchfake._streams import Draw
from torchfake._wanted import Group, Groups, aligned, copied, extent_of, part, wanted_of

BLOCK = 256 * 1024
"""Elements of what is copied from at once, where only a copy is wanted: columns of a matrix are
copied from all of its rows."""


def narrowed(ops: list[Op], wanted: Iterable[Cell]) -> list[Op]:
    """`ops` on those elements that the cells `wanted` take to be made whole.

    Args:
        ops: in the recorded order, all that `wanted` come from; they are not changed.
        wanted: these stay as they are.
    """
    groups = wanted_of(ops, wanted)
    return ops if groups is None else _Rewriting(groups, ops).all_of(ops)


class _Stretch:
    """A part of a group that is made on its own, and the cells that it is made in."""

    def __init__(self, group: Group, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.is_whole = stop - start == group.length
        self._length = group.length
        self._cells: dict[Cell, Cell] = {}

    def cell(self, cell: Cell) -> Cell:
        """What is made of `cell`."""
        if self.is_whole:
            return cell
        if cell not in self._cells:
            itemsize = cell.num_bytes // max(1, self._length)
            self._cells[cell] = Cell((self.stop - self.start) * itemsize, cell.device)
        return self._cells[cell]

    def moved(self, read: Read) -> Read:
        """What looks at the same elements, of what is made."""
        if self.is_whole:
            return read
        record = read.record
        offset = max(0, record.offset - self.start)  # less if it is empty
        place = record.size, record.stride, offset, record.dtype, record.device
        moved = intern(*place, record.layout, record.conj, record.neg)
        return Read(Contents(self.cell(read.contents.cell)), moved)

    def elements(self, cell: Cell, record: Metadata, first: int, last: int) -> Read:
        """What looks at these elements, one after the other."""
        flat = intern((last - first,), (1,), first - self.start, record.dtype, record.device)
        return Read(Contents(self.cell(cell)), flat)


class _Blocks(NamedTuple):
    """A group of which only one copy takes something: it is made and copied block by block."""

    dim: int  # along which it is cut
    edges: list[int]  # in that dimension
    stretches: list[_Stretch]  # of the group, one for each block


class _Rewriting:
    """Operations on the cells that are left."""

    def __init__(self, groups: Groups, ops: list[Op]) -> None:
        self._groups = groups
        self._stretches: dict[Group, _Stretch] = {}
        self._blocks = {
            group: blocks
            for op, group in groups.only_copied(ops)
            if (blocks := self._cut(op, group)) is not None
        }

    def all_of(self, ops: list[Op]) -> list[Op]:
        return [new for op in ops for new in self._ops(op)]

    def _ops(self, op: Op) -> Iterator[Op]:
        """`op` on smaller cells, once for each block; nothing if nothing is wanted of it."""
        step = self._groups.step(op)
        pair = copied(op)
        if step is not None:
            yield from self._of_step(op, step)
        elif pair is not None:
            yield from self._of_copy(op, *pair)
        elif op.kept is not None or self._is_as_it_was(op):
            yield op
        else:
            yield self._with(op, [self._moved(arg) for arg in op.args], op.made)

    def _is_as_it_was(self, op: Op) -> bool:
        return all(self._groups.of(cell).is_whole for cell in cells_of(op))

    def _stretch(self, cell: Cell) -> _Stretch:
        group = self._groups.of(cell)
        if group not in self._stretches:
            self._stretches[group] = _Stretch(group, group.start, group.stop)
        return self._stretches[group]

    def _moved(self, arg: Any) -> Any:
        if type(arg) in (list, tuple):
            return [self._moved(item) for item in arg]
        return self._stretch(arg.contents.cell).moved(arg) if type(arg) is Read else arg

    # Steps.

    def _of_step(self, op: Op, step: Step) -> Iterator[Op]:
        cell = step.views[0].cell
        blocks = self._blocks.get(self._groups.of(cell))
        if blocks is None:
            new = self._on(self._stretch(cell), op, step)
            if new is not None:
                yield new
            return
        for i, stretch in enumerate(blocks.stretches):
            new = self._on(stretch, op, step)
            if new is not None:
                yield _numbered(new, i, blocks)

    def _on(self, stretch: _Stretch, op: Op, step: Step) -> Op | None:
        """A step on the elements of a stretch that it works on, if there are any."""
        first, last = step.within(stretch.start, stretch.stop)
        if stretch.is_whole:
            return op
        if first >= last:
            return None
        views = [stretch.elements(m.cell, m.record, first, last) for m in op.made]
        made = tuple(
            Made(m.place, view.contents.cell, view.record)
            for m, view in zip(op.made, views, strict=True)
        )
        looks_at_shape = is_factory(op)  # of whatever tensor: its own will do
        args = [
            arg
            if type(arg) is not Read
            else views[0]
            if looks_at_shape
            else stretch.elements(arg.contents.cell, arg.record, first, last)
            for arg in op.args
        ]
        new = self._with(op, args, made, tuple(map(stretch.cell, op.written)))
        if op.draw is not None:
            new.draw = _later(op.draw, step, first, last)
        assert step_of(new) is not None
        return new

    # Copies.

    def _of_copy(self, op: Op, target: Read, source: Read) -> Iterator[Op]:
        rows = self._groups.rows_wanted(target)
        if rows[0] >= rows[1] and target.record.num_bytes:
            return
        blocks = self._blocks.get(self._groups.of(source.contents.cell))
        if blocks is None:
            yield op if self._is_as_it_was(op) else self._copy_of_rows(op, target, source, rows)
            return
        new_target = self._moved(part(target, rows))
        new_source = part(source, rows)
        for i, stretch in enumerate(blocks.stretches):
            edges = blocks.edges[i], blocks.edges[i + 1]
            to = part(new_target, edges, blocks.dim)
            of = stretch.moved(part(new_source, edges, blocks.dim))
            new = self._with(op, [to, of], (), (to.contents.cell,))
            new.func, new.kwargs = torch.ops.aten.copy_.default, {}
            yield _numbered(new, i, blocks)

    def _copy_of_rows(self, op: Op, target: Read, source: Read, rows: tuple[int, int]) -> Op:
        to, of = (self._moved(part(read, rows)) for read in (target, source))
        if not op.made:
            return self._with(op, [to, of, *op.args[2:]], ())
        made = (Made(op.made[0].place, to.contents.cell, to.record),)
        return self._with(op, [of, *op.args[1:]], made)

    def _cut(self, op: Op, group: Group) -> _Blocks | None:
        """The blocks of a copy, if there is something to be gained by them."""
        pair = copied(op)
        assert pair is not None
        source = part(pair[1], self._groups.rows_wanted(pair[0]))
        record = source.record
        if group.stop - group.start <= BLOCK or record.dtype.itemsize != group.itemsize:
            return None
        if record.is_in_order and extent_of(record) == (group.start, group.stop):
            return None  # the copy is a step as all others
        dim = max(range(len(record.size)), key=lambda d: record.stride[d] * (record.size[d] > 1))
        size = max(1, BLOCK // max(1, record.stride[dim]))
        edges = [*range(0, record.size[dim], size), record.size[dim]]
        stretches = [
            _Stretch(group, *aligned(*extent_of(part(source, cut, dim).record), group.length))
            for cut in itertools.pairwise(edges)
        ]
        return _Blocks(dim, edges, stretches) if len(stretches) > 1 else None

    def _with(
        self,
        op: Op,
        args: list[Any],
        made: tuple[Made, ...],
        written: tuple[Cell, ...] | None = None,
    ) -> Op:
        new = copy.copy(op)
        new.args, new.made = tuple(args), made
        new.kwargs = {name: self._moved(arg) for name, arg in op.kwargs.items()}
        if written is None:
            written = tuple(self._stretch(cell).cell(cell) for cell in op.written)
        new.written = written
        return new


def _numbered(op: Op, i: int, blocks: _Blocks) -> Op:
    """In between: blocks of an operation are done in order, before the next operation."""
    op.number += i / (len(blocks.stretches) + 1)
    return op


def _later(draw: Draw, step: Step, first: int, last: int) -> Draw:
    """The draws of those elements alone."""
    assert draw.taken is not None
    skipped = (first - step.start) * step.words
    taken = draw.taken - skipped if last == step.stop else (last - first) * step.words
    return Draw(draw.anchor, draw.words + skipped, taken, draw.device)
