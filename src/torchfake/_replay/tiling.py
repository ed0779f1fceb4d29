"""Operations that can be computed tile by tile.

Input: a recorded operation. Output: a :class:`TileableOp`, which computes any range of its elements
without the others; None if the operation has to be executed whole. Invariant: tiled or not, the
bits are the same. Draws are split at multiples of 16 elements, where torch's kernels start anew;
arithmetic is split anywhere, if a test of the installed torch gives equal bits.

All operands of a tileable operation are cells with the same number of elements, in the same order
in memory. Element i of the result depends on elements i of the operands alone, or on position i of
a generator's sequence. So several operations on the same elements can be computed one after the
other on a tile that stays in a processor's cache, and intermediate cells never exist as a whole.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from torchfake._core.memory import replay_device
from torchfake._core.metadata import Metadata, is_dense
from torchfake._core.schemas import traits_of
from torchfake._graph.externals import External
from torchfake._graph.operations import Cell, Op, Read
from torchfake._random.draw_sizes import NORMAL_BLOCK_ELEMENTS, num_words_per_element
from torchfake._random.recorded_draws import Draw
from torchfake._replay.tile_kernels import (
    Kernel,
    builder_of,
    builds_factory,
    tiled_draws_match,
)

DRAW_ALIGNMENT = NORMAL_BLOCK_ELEMENTS
"""Draws are split at multiples of this many elements."""


class FlatView(NamedTuple):
    """All elements of a cell in memory order, as one dimension of dtype `dtype`."""

    cell: Cell
    dtype: torch.dtype


class TileableOp(NamedTuple):
    """An operation on the elements `start` to `stop` of cells with `cell_length` elements each."""

    op: Op
    cell_length: int
    start: int
    stop: int
    views: tuple[FlatView, ...]  # of its operands, in the order in which `kernel` takes them
    kernel: Kernel
    words_per_element: int  # random words that each element takes

    @property
    def draw(self) -> Draw | None:
        return self.op.draw  # type: ignore[no-any-return]

    def clip(self, start: int, stop: int) -> tuple[int, int]:
        """The part of a range that the operation covers; empty unless it starts before it stops."""
        return max(start, self.start), min(stop, self.stop)


def as_tileable(op: Op) -> TileableOp | None:
    """`op` in a form that can be computed tile by tile; None if it has to be executed whole."""
    build = builder_of(op)
    if build is None or op.cached is not None or op.unreplayable_reason is not None:
        return None
    if op.numerics.flushes_denormals or not op.numerics.rounds_to_nearest:
        return None  # settings of one thread; tiles are computed by several
    operands = [(output.record, output.cell) for output in op.outputs]
    if not builds_factory(build):  # factories read no values
        reads = [(read.record, read.contents.cell) for read in op.args if type(read) is Read]
        operands = [*reads, *operands]
    if not operands or not _have_same_layout(operands):
        return None
    if not all(map(_is_tileable_argument, op.args)):
        return None
    record, cell = operands[0]
    start, stop = record.offset, record.offset + math.prod(record.size)
    length = cell.num_bytes // record.dtype.itemsize
    kernel = build(op)
    is_draw = op.draw is not None
    if kernel is None or (is_draw and not _can_tile_draw(op, record, start, stop, length)):
        return None
    views = tuple(FlatView(cell, record.dtype) for record, cell in operands)
    words = num_words_per_element(record.dtype) if is_draw else 0
    return TileableOp(op, length, start, stop, views, kernel, words)


def is_factory(op: Op) -> bool:
    """Whether a tileable `op` reads no values, and at most the shape of a tensor."""
    return builds_factory(builder_of(op))


def _is_tileable_argument(arg: Any) -> bool:
    """Whether tiles can be given `arg`: no real tensor with dims, and no list of tensors."""
    if type(arg) is External:
        return arg.tensor.dim() == 0 and arg.tensor.device.type == "cpu"
    return type(arg) not in (list, tuple) or not any(isinstance(i, (Read, External)) for i in arg)


def _have_same_layout(operands: list[tuple[Metadata, Cell]]) -> bool:
    """Whether all operands are on the host, in the same order in cells of the same length."""
    (first, cell), *others = operands
    length = _num_dense_elements(first, cell)
    if length is None or replay_device(cell.device).type != "cpu":
        return False
    return all(
        _num_dense_elements(record, cell) == length
        and (record.size, record.offset) == (first.size, first.offset)
        and _strides(record) == _strides(first)
        and replay_device(cell.device).type == "cpu"
        for record, cell in others
    )


def _num_dense_elements(record: Metadata, cell: Cell) -> int | None:
    """The number of elements of `cell`, if those of `record` lie in it without gaps, each once."""
    if record.differs_from_memory or record.layout != torch.strided:
        return None
    if not cell.num_bytes or cell.num_bytes % record.dtype.itemsize:
        return None
    return cell.num_bytes // record.dtype.itemsize if is_dense(record) else None


def _strides(record: Metadata) -> list[tuple[int, int]]:
    """Strides and sizes of the dimensions that are longer than 1."""
    pairs = zip(record.stride, record.size, strict=True)
    return [(stride, length) for stride, length in pairs if length != 1]


def _can_tile_draw(op: Op, record: Metadata, start: int, stop: int, length: int) -> bool:
    """Whether tiles of a draw have the bits of the whole. Elements behind the last multiple of 16
    are drawn with the last tile, so they have to be the last elements of the cell.
    """
    if op.draw.num_words is None or op.draw.device.type != "cpu":
        return False
    if not record.is_contiguous or start % DRAW_ALIGNMENT:
        return False
    is_end_aligned = stop == length or stop % DRAW_ALIGNMENT == 0
    return is_end_aligned and tiled_draws_match(traits_of(op.func).packet, record.dtype)
