"""Rewriting of operations to the elements that are demanded.

Input: operations in the recorded order, and the cells that are requested whole. Output: the
operations rewritten to smaller cells, which hold the demanded ranges alone. Invariant: every
element that is computed keeps its bits; a draw of a range starts later in its sequence, by the
number of random words that the elements before the range take.

For some columns of a matrix, whole rows are drawn, as that is faster than jumping in the sequence
from row to row; but only one block of rows exists at a time.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from torchfake._core.metadata import Metadata, intern
from torchfake._graph.operations import Cell, Op, Output, Read
from torchfake._random.recorded_draws import Draw
from torchfake._replay.demand_analysis import (
    CellGroup,
    Demand,
    align_range,
    copy_operands,
    element_range,
    find_demand,
    reads_file,
    slice_rows,
)
from torchfake._replay.task_graph import cells_of
from torchfake._replay.tiling import TileableOp, as_tileable, is_factory

COPY_BLOCK_ELEMENTS = 256 * 1024
"""Elements of a copy's source that exist at a time, where nothing else reads the source: columns of
a matrix are copied from all of its rows."""


def slice_to_demand(ops: list[Op], requested: Iterable[Cell]) -> list[Op]:
    """`ops` restricted to the elements that are needed to make the cells `requested`.

    Args:
        ops: all operations that `requested` depend on, in the recorded order; not changed.
        requested: computed whole.
    """
    demand = find_demand(ops, requested)
    return ops if demand is None else _Rewriter(demand, ops).rewrite(ops)


class _GroupSlice:
    """A range of a cell group that is computed on its own, in smaller cells."""

    def __init__(self, group: CellGroup, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.is_whole = stop - start == group.num_elements
        self._group_length = group.num_elements
        self._sliced_cells: dict[Cell, Cell] = {}

    def cell(self, cell: Cell) -> Cell:
        """The smaller cell that holds this range of `cell`."""
        if self.is_whole:
            return cell
        if cell not in self._sliced_cells:
            itemsize = cell.num_bytes // max(1, self._group_length)
            self._sliced_cells[cell] = Cell((self.stop - self.start) * itemsize, cell.device)
        return self._sliced_cells[cell]

    def view(self, read: Read) -> Read:
        """The view of the same elements in the smaller cell."""
        if self.is_whole:
            return read
        record = read.record
        offset = max(0, record.offset - self.start)  # negative if the view is empty
        strided = record.size, record.stride, offset, record.dtype, record.device
        sliced = intern(*strided, record.layout, record.conj, record.neg, record.zero)
        return Read(self.cell(read.contents.cell), sliced)

    def flat_view(self, cell: Cell, record: Metadata, first: int, last: int) -> Read:
        """The one-dimensional view of the elements from `first` to `last` of the whole cell."""
        flat = intern((last - first,), (1,), first - self.start, record.dtype, record.device)
        return Read(self.cell(cell), flat)


class _CopyBlocks(NamedTuple):
    """The blocks in which a group is computed and copied, where only one copy reads it."""

    dim: int  # along which the source is split
    edges: list[int]  # of the blocks, in that dimension
    slices: list[_GroupSlice]  # of the group, one for each block


class _Rewriter:
    """Rewrites operations to cells of the demanded size."""

    def __init__(self, demand: Demand, ops: list[Op]) -> None:
        self._demand = demand
        self._slices: dict[CellGroup, _GroupSlice] = {}
        self._copy_blocks = {
            group: blocks
            for group, target, source in demand.groups_read_by_one_copy(ops)
            if (blocks := self._split(group, target, source)) is not None
        }

    def rewrite(self, ops: list[Op]) -> list[Op]:
        return [new for op in ops for new in self._rewritten(op)]

    def _rewritten(self, op: Op) -> Iterator[Op]:
        """`op` on smaller cells, once for each block; nothing if nothing of it is demanded."""
        tileable = self._demand.tileable(op)
        if tileable is not None:
            yield from self._rewritten_tileable(op, tileable)
        elif (pair := copy_operands(op)) is not None:
            yield from self._rewritten_copy(op, *pair)
        elif reads_file(op):
            yield from self._restricted_read(op)
        elif op.cached is not None or self._is_unchanged(op):
            yield op
        else:
            yield self._replace(op, [self._sliced_argument(arg) for arg in op.args], op.outputs)

    def _restricted_read(self, op: Op) -> Iterator[Op]:
        """A read of the demanded part of a file."""
        output = op.outputs[0]
        part, itemsize = self._slice_of(output.cell), self._demand.itemsize(output.cell)
        if part.is_whole:
            yield op
        elif part.start < part.stop:
            cell = part.cell(output.cell)
            record = intern((cell.num_bytes,), (1,), 0, torch.uint8, cell.device)
            source = op.args[0].part(part.start * itemsize, part.stop * itemsize)
            yield self._replace(op, [source], (Output(None, cell, record),))

    def _is_unchanged(self, op: Op) -> bool:
        return all(self._demand.group_of(cell).is_whole for cell in cells_of(op))

    def _slice_of(self, cell: Cell) -> _GroupSlice:
        group = self._demand.group_of(cell)
        if group not in self._slices:
            self._slices[group] = _GroupSlice(group, group.start, group.stop)
        return self._slices[group]

    def _sliced_argument(self, arg: Any) -> Any:
        if type(arg) in (list, tuple):
            return [self._sliced_argument(item) for item in arg]
        return self._slice_of(arg.contents.cell).view(arg) if type(arg) is Read else arg

    # Tileable operations.

    def _rewritten_tileable(self, op: Op, tileable: TileableOp) -> Iterator[Op]:
        cell = tileable.views[0].cell
        blocks = self._copy_blocks.get(self._demand.group_of(cell))
        if blocks is None:
            new = self._restricted(op, tileable, self._slice_of(cell))
            if new is not None:
                yield new
            return
        for i, group_slice in enumerate(blocks.slices):
            new = self._restricted(op, tileable, group_slice)
            if new is not None:
                yield _number_block(new, i, blocks)

    def _restricted(self, op: Op, tileable: TileableOp, group_slice: _GroupSlice) -> Op | None:
        """A tileable operation on the elements of a slice; None if it covers none of them."""
        first, last = tileable.clip(group_slice.start, group_slice.stop)
        if group_slice.is_whole:
            return op
        if first >= last:
            return None
        views = [group_slice.flat_view(m.cell, m.record, first, last) for m in op.outputs]
        outputs = tuple(
            Output(m.position, view.contents.cell, view.record)
            for m, view in zip(op.outputs, views, strict=True)
        )
        reads_shape = is_factory(op)  # and no values: the result has the right shape

        def restrict(arg: Any) -> Any:
            if type(arg) is not Read:
                return arg
            if reads_shape:
                return views[0]
            return group_slice.flat_view(arg.contents.cell, arg.record, first, last)

        args = [restrict(arg) for arg in op.args]
        new = self._replace(op, args, outputs, tuple(map(group_slice.cell, op.mutated)))
        if op.draw is not None:
            new.draw = _restricted_draw(op.draw, tileable, first, last)
        assert as_tileable(new) is not None
        return new

    # Copies.

    def _rewritten_copy(self, op: Op, target: Read, source: Read) -> Iterator[Op]:
        rows = self._demand.demanded_rows(target)
        if rows[0] >= rows[1] and target.record.num_bytes:
            return
        blocks = self._copy_blocks.get(self._demand.group_of(source.contents.cell))
        if blocks is None:
            yield op if self._is_unchanged(op) else self._copy_of_rows(op, target, source, rows)
            return
        new_target = self._sliced_argument(slice_rows(target, rows))
        new_source = slice_rows(source, rows)
        for i, group_slice in enumerate(blocks.slices):
            edges = blocks.edges[i], blocks.edges[i + 1]
            to = slice_rows(new_target, edges, blocks.dim)
            from_ = group_slice.view(slice_rows(new_source, edges, blocks.dim))
            new = self._replace(op, [to, from_], (), (to.contents.cell,))
            new.func, new.kwargs = torch.ops.aten.copy_.default, {}
            yield _number_block(new, i, blocks)

    def _copy_of_rows(self, op: Op, target: Read, source: Read, rows: tuple[int, int]) -> Op:
        to, from_ = (self._sliced_argument(slice_rows(read, rows)) for read in (target, source))
        if not op.outputs:
            return self._replace(op, [to, from_, *op.args[2:]], ())
        outputs = (Output(op.outputs[0].position, to.contents.cell, to.record),)
        return self._replace(op, [from_, *op.args[1:]], outputs)

    def _split(self, group: CellGroup, target: Read, source: Read) -> _CopyBlocks | None:
        """The blocks of a copy; None if they would save no memory."""
        source = slice_rows(source, self._demand.demanded_rows(target))
        record = source.record
        num_elements = group.stop - group.start
        if num_elements <= COPY_BLOCK_ELEMENTS or record.dtype.itemsize != group.itemsize:
            return None
        if record.is_contiguous and element_range(record) == (group.start, group.stop):
            return None  # the copy can be tiled as it is
        dim = max(range(len(record.size)), key=lambda d: record.stride[d] * (record.size[d] > 1))
        size = max(1, COPY_BLOCK_ELEMENTS // max(1, record.stride[dim]))
        edges = [*range(0, record.size[dim], size), record.size[dim]]
        ranges = [
            element_range(slice_rows(source, rows, dim).record)
            for rows in itertools.pairwise(edges)
        ]
        slices = [_GroupSlice(group, *align_range(*r, group.num_elements)) for r in ranges]
        return _CopyBlocks(dim, edges, slices) if len(slices) > 1 else None

    def _replace(
        self,
        op: Op,
        args: list[Any],
        outputs: tuple[Output, ...],
        mutated: tuple[Cell, ...] | None = None,
    ) -> Op:
        """A copy of `op` with other arguments and results."""
        new = copy.copy(op)
        new.args, new.outputs = tuple(args), outputs
        new.kwargs = {name: self._sliced_argument(arg) for name, arg in op.kwargs.items()}
        if mutated is None:
            mutated = tuple(self._slice_of(cell).cell(cell) for cell in op.mutated)
        new.mutated = mutated
        return new


def _number_block(op: Op, i: int, blocks: _CopyBlocks) -> Op:
    """Number block `i` of an operation: blocks come in order, before the next operation."""
    op.number += i / (len(blocks.slices) + 1)
    return op


def _restricted_draw(draw: Draw, tileable: TileableOp, first: int, last: int) -> Draw:
    """The draws of the elements from `first` to `last` alone."""
    assert draw.num_words is not None
    skipped = (first - tileable.start) * tileable.words_per_element
    if last == tileable.stop:
        taken = draw.num_words - skipped
    else:
        taken = (last - first) * tileable.words_per_element
    return Draw(draw.anchor, draw.offset_words + skipped, taken, draw.device)
