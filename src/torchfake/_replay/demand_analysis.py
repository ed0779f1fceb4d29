"""Demand analysis: which elements of each cell have to be computed.

Input: operations in the recorded order, and the cells that are requested whole. Output: a
:class:`Demand`, with the range of elements that is demanded of each cell; None if everything is.
Invariant: the demanded ranges include every element that computing them reads.

A shard is a copy of a part of a parameter, so only that part is demanded, of the parameter and of
all cells that it was computed from element by element, down to the draws. An operation that needs
more (an orthogonal matrix, a norm, a draw that cannot be counted) demands all that it reads.

Cells whose elements correspond one to one form a group, for which one range is demanded. Ranges are
found backwards, from the last operation to the first: a copy into a cell demands the elements that
it copies. This is repeated until no range grows, since an earlier operation may read a cell too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from torchfake._core.metadata import Metadata, bytes_spanned, intern
from torchfake._core.schemas import traits_of
from torchfake._graph.file_slices import read_slice
from torchfake._graph.operations import Cell, Op, Read
from torchfake._replay.task_graph import cells_of
from torchfake._replay.tiling import DRAW_ALIGNMENT, TileableOp, as_tileable

MIN_SLICED_BYTES = 256 * 1024
"""Cells up to this size are computed whole."""

_COPIES = frozenset({"aten.clone.default", "aten._to_copy.default"})
_COPY_IN_PLACE = "aten.copy_.default"


def find_demand(ops: list[Op], cells: Iterable[Cell]) -> Demand | None:
    """The elements that have to be computed to make `cells`; None if these are all elements.

    Args:
        ops: all operations that `cells` depend on, in the recorded order.
        cells: requested whole.
    """
    if not any(_reads_part(op) for op in ops):
        return None
    demand = Demand(ops)
    demand.demand_whole(cells)
    while sum(demand.propagate(op) for op in reversed(ops)):
        pass  # until no range grows
    return demand


def _reads_part(op: Op) -> bool:
    return any(
        2 * read.record.num_bytes <= read.contents.cell.num_bytes > MIN_SLICED_BYTES
        for read in op.reads()
    )


class CellGroup:
    """Cells whose elements correspond one to one, and of which one range is demanded."""

    def __init__(self, num_elements: int, itemsize: int) -> None:
        self.num_elements = num_elements
        self.itemsize = itemsize  # of the widest dtype among the cells
        self.start = self.stop = 0  # empty: nothing is demanded yet
        self.can_be_sliced = True

    def extend(self, start: int, stop: int) -> bool:
        """Extend the demanded range to include another; return whether it has grown."""
        if start >= stop:
            return False
        if not self.can_be_sliced or self.num_elements * self.itemsize <= MIN_SLICED_BYTES:
            start, stop = 0, self.num_elements
        if self.start < self.stop:
            start, stop = min(start, self.start), max(stop, self.stop)
        start, stop = align_range(start, stop, self.num_elements)
        has_grown = (start, stop) != (self.start, self.stop)
        self.start, self.stop = start, stop
        return has_grown

    @property
    def is_whole(self) -> bool:
        return self.stop - self.start == self.num_elements


def align_range(start: int, stop: int, num_elements: int) -> tuple[int, int]:
    """Extend a range by a few elements, so that its draws have the bits of a draw of all elements:
    see :func:`torchfake._replay.tiling.as_tileable`. The last elements stay together.
    """
    stop = -(-stop // DRAW_ALIGNMENT) * DRAW_ALIGNMENT
    if num_elements - stop < 2 * DRAW_ALIGNMENT:
        stop = num_elements
    start = start // DRAW_ALIGNMENT * DRAW_ALIGNMENT
    if stop - start < 2 * DRAW_ALIGNMENT:
        start = max(0, (stop - 2 * DRAW_ALIGNMENT) // DRAW_ALIGNMENT * DRAW_ALIGNMENT)
    return start, stop


class Demand:
    """The range of elements that is demanded of each cell."""

    def __init__(self, ops: list[Op]) -> None:
        self._group_of: dict[Cell, CellGroup] = {}
        self._cells_of: dict[CellGroup, set[Cell]] = {}
        self._tileables: dict[float, TileableOp] = {}
        for op in ops:
            tileable = as_tileable(op)
            if tileable is not None:
                self._tileables[op.number] = tileable
                self._merge_groups(tileable)
        for op in sorted(ops, key=reads_file):  # file reads last: other operations know the dtype
            for cell, itemsize in _itemsizes(op):
                if cell not in self._group_of:
                    self._put(cell, CellGroup(cell.num_bytes // itemsize, itemsize))

    def group_of(self, cell: Cell) -> CellGroup:
        return self._group_of[cell]

    def tileable(self, op: Op) -> TileableOp | None:
        return self._tileables.get(op.number)

    def itemsize(self, cell: Cell) -> int:
        return cell.num_bytes // max(1, self._group_of[cell].num_elements)

    def _put(self, cell: Cell, group: CellGroup) -> None:
        self._group_of[cell] = group
        self._cells_of.setdefault(group, set()).add(cell)

    def _merge_groups(self, tileable: TileableOp) -> None:
        """Put all cells of a tileable operation into one group."""
        widest = max(view.dtype.itemsize for view in tileable.views)
        first_cell = tileable.views[0].cell
        group = self._group_of.get(first_cell) or CellGroup(tileable.cell_length, widest)
        self._put(first_cell, group)
        for view in tileable.views:
            other = self._group_of.get(view.cell)
            if other is group:
                continue
            moved = {view.cell} if other is None else self._cells_of.pop(other)
            for cell in moved:
                self._put(cell, group)
            if other is not None:
                same_length = other.num_elements == group.num_elements
                group.can_be_sliced &= other.can_be_sliced and same_length
        group.itemsize = max(group.itemsize, widest)
        group.can_be_sliced &= group.num_elements == tileable.cell_length

    def demand_whole(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            group = self._group_of.get(cell)
            if group is not None:
                group.can_be_sliced = False
                group.extend(0, group.num_elements)

    def propagate(self, op: Op) -> bool:
        """Demand what `op` reads for its demanded results; return whether a range grew."""
        if self.tileable(op) is not None or reads_file(op):
            return False  # reads only its own group's demanded range, or no cell
        pair = copy_operands(op)
        if pair is not None:
            rows = self.demanded_rows(pair[0])
            grown = [self._demand(slice_rows(read, rows)) for read in pair]
            return any(grown)
        grown = [self._demand(read) for read in op.reads() if op.cached is None]
        grown += [
            self._demand_all(cell) for cell in op.modified_cells() if _defines_whole(cell, op)
        ]
        return any(grown)

    def demanded_rows(self, target: Read) -> tuple[int, int]:
        """The rows of a copy's target (see :func:`slice_rows`) that are demanded."""
        record, group = target.record, self._group_of[target.contents.cell]
        if group.start >= group.stop or not record.num_bytes:
            return 0, 0
        num_rows, row = _rows_of(record)
        if group.is_whole or not record.is_contiguous or not self._has_group_itemsize(target):
            return 0, num_rows
        first = max(group.start - record.offset, 0) // row
        last = -(-min(group.stop - record.offset, num_rows * row) // row)
        return (first, last) if first < last else (0, 0)

    def groups_read_by_one_copy(self, ops: list[Op]) -> Iterator[tuple[CellGroup, Read, Read]]:
        """Groups that tileable operations write and one copy reads, with that copy's operands."""
        users: dict[CellGroup, list[Op]] = {}
        for op in ops:
            tileable = self.tileable(op)
            if tileable is None:
                for group in {self._group_of[cell] for cell in cells_of(op)}:
                    users.setdefault(group, []).append(op)
            else:  # a use as well: it may write the group after the copy
                users.setdefault(self._group_of[tileable.views[0].cell], []).append(op)
        for group, (*others, last) in users.items():
            pair = copy_operands(last)
            if pair is None or self.tileable(last) is not None or not group.can_be_sliced:
                continue
            is_target, is_source = (self._group_of[read.contents.cell] is group for read in pair)
            if is_source and not is_target and all(map(self.tileable, others)):
                yield group, *pair

    def _has_group_itemsize(self, read: Read) -> bool:
        """Whether an element of the view is as large as an element of its cell."""
        return read.record.dtype.itemsize == self.itemsize(read.contents.cell)

    def _demand(self, read: Read) -> bool:
        if not self._has_group_itemsize(read):
            return bool(read.record.num_bytes) and self._demand_all(read.contents.cell)
        return self._group_of[read.contents.cell].extend(*element_range(read.record))

    def _demand_all(self, cell: Cell) -> bool:
        group = self._group_of[cell]
        return group.extend(0, group.num_elements)


def reads_file(op: Op) -> bool:
    """Whether `op` reads bytes of a file, of which any range can be read."""
    return op.func is read_slice and op.cached is None


def _itemsizes(op: Op) -> Iterable[tuple[Cell, int]]:
    for output in op.outputs:
        yield output.cell, output.record.dtype.itemsize
    for read in op.reads():
        yield read.contents.cell, read.record.dtype.itemsize
    for cell in op.mutated:
        yield cell, 1  # if neither a result nor an argument tells more


def _defines_whole(cell: Cell, op: Op) -> bool:
    """Whether an operation that cannot be tiled defines all elements of `cell`, not only those that
    it reads from `cell`.
    """
    return op.cached is not None or all(read.contents.cell is not cell for read in op.reads())


def element_range(record: Metadata) -> tuple[int, int]:
    """The range of a storage from the first element of a view to its last."""
    if 0 in record.size:
        return record.offset, record.offset
    return record.offset, bytes_spanned(record.size, record.stride, record.offset, 1)


def copy_operands(op: Op) -> tuple[Read, Read] | None:
    """Target and source of an operation that copies elements one to one; None for others."""
    if op.cached is not None or op.unreplayable_reason is not None:
        return None
    name = traits_of(op.func).name if hasattr(op.func, "_schema") else None
    if name == _COPY_IN_PLACE:
        target, source = op.args[:2]
    elif name in _COPIES and len(op.outputs) == 1:
        output = op.outputs[0]
        target, source = Read(output.cell, output.record), op.args[0]
    else:
        return None
    if type(target) is not Read or type(source) is not Read:
        return None
    one, other = target.record, source.record
    if one.size != other.size or not one.size or not _is_plain(one) or not _is_plain(other):
        return None
    return target, source


def _is_plain(record: Metadata) -> bool:
    return not record.differs_from_memory and record.layout == torch.strided


def _rows_of(record: Metadata) -> tuple[int, int]:
    """The number of rows along the first dimension longer than 1, and of elements in each row."""
    dim = _row_dim(record)
    return record.size[dim], math.prod(record.size[dim + 1 :])


def _row_dim(record: Metadata) -> int:
    return next((d for d, length in enumerate(record.size) if length != 1), 0)


def slice_rows(read: Read, rows: tuple[int, int], dim: int | None = None) -> Read:
    """The view of the rows ``rows[0]`` to ``rows[1] - 1`` along `dim`, which defaults to the first
    dimension that is longer than 1.
    """
    record, (first, last) = read.record, rows
    dim = _row_dim(record) if dim is None else dim
    size = (*record.size[:dim], last - first, *record.size[dim + 1 :])
    offset = record.offset + first * record.stride[dim]
    return Read(read.contents, intern(size, record.stride, offset, record.dtype, record.device))
