"""Column shards, assembled from rows that ranks draw and exchange.

Input: DTensors of deferred shards, by name. Output: an :class:`Exchange` for each parameter of
which ranks can draw disjoint rows, and the values of this rank's shards. Invariant: which
parameters are exchanged depends on global shapes and on the record alone, so ranks with equal
records exchange the same ones; a shard is exchanged only if it is a plain slice of its source.

Random numbers are drawn row by row. To get some columns, a rank would have to draw all of them;
instead each rank of a group draws some of the rows, and sends every other rank its columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from torchfake._core import memory
from torchfake._core.metadata import Metadata, contiguous_stride, intern
from torchfake._graph.operations import Cell, Contents, Op, Output, Read, Written, dependencies
from torchfake._replay import demand_analysis, replay
from torchfake._replay.demand_analysis import copy_operands
from torchfake._replay.tiling import as_tileable
from torchfake._sharding.local_slices import local_slices_of
from torchfake._sharding.provenance import ShardSource, copy_of, shard_source, source_metadata
from torchfake._sharding.row_packing import PackedRows
from torchfake._torch import dispatcher
from torchfake._torch.distributed import dtensors

BATCH_BYTES = 64 * 1024 * 1024
"""Bytes of shards that are exchanged at a time."""


class Exchange(NamedTuple):
    """The exchange of one parameter, viewed as a matrix: dimensions before the sharded are rows."""

    name: str
    dtensor: Any
    group: Any  # the process group of the axis that shards columns
    source: ShardSource
    record: Metadata  # of the full tensor
    rows: tuple[int, int]  # range of rows that this group has
    columns: list[tuple[int, int]]  # range of columns of each rank of the group

    @property
    def num_columns(self) -> int:
        return math.prod(self.record.size) // max(1, self._num_rows)

    @property
    def _num_rows(self) -> int:
        dim = next(d for d in _sharded_dims(self.dtensor) if d > 0)
        return math.prod(self.record.size[:dim])

    @property
    def num_bytes(self) -> int:
        """The bytes of the group's largest shard."""
        return (self.rows[1] - self.rows[0]) * self.columns[0][1] * self.record.dtype.itemsize

    def rows_of(self, index: int) -> tuple[int, int]:
        """The rows that the rank `index` of the group draws."""
        first, last = self.rows
        size = -(-(last - first) // len(self.columns))
        return min(first + index * size, last), min(first + (index + 1) * size, last)


def _sharded_dims(dtensor: Any) -> list[int]:
    splits = dtensors.axis_splits_of(dtensor) or []
    return [s.dim % dtensor.dim() for s in splits if s.num_shards > 1]


def exchange_of(name: str, dtensor: Any) -> Exchange | None:
    """The exchange of `dtensor`; None if each rank has to draw its own shard."""
    mesh = dtensor.device_mesh
    if dtensor.dim() < 2 or not dtensors.can_communicate(mesh):
        return None
    dims = _sharded_dims(dtensor)
    dim = max(dims, default=0)
    if dim == 0 or dims.count(dim) > 1 or any(d not in (0, dim) for d in dims):
        return None
    size = tuple(dtensor.shape)
    axis, num_shards = dtensors.axis_that_shards(dtensor, dim)
    part = -(-size[dim] // num_shards)
    is_large = dtensor.numel() * dtensor.dtype.itemsize > demand_analysis.MIN_SLICED_BYTES
    if axis is None or part * (num_shards - 1) >= size[dim] or not is_large:
        return None  # a rank would have no columns, or drawing the parameter is cheap
    slices, source = local_slices_of(name, dtensor), shard_source(dtensor)
    if source is None or any(len(ranges) != 1 for ranges in slices.ranges):
        return None
    record = source_metadata(dtensor, source)
    if record is None or not record.is_contiguous or not _can_be_drawn_in_rows(source):
        return None
    starts, inner = [r[0] for r in slices.ranges], math.prod(size[dim + 1 :])
    coordinate = mesh.get_coordinate()[axis]
    bounds = [(min(k * part, size[dim]), min((k + 1) * part, size[dim])) for k in range(num_shards)]
    if starts[dim] != bounds[coordinate]:
        return None
    outer = math.prod(size[1:dim])
    rows = starts[0][0] * outer, starts[0][1] * outer
    columns = [(first * inner, last * inner) for first, last in bounds]
    return Exchange(name, dtensor, mesh.get_group(axis), source, record, rows, columns)


def _can_be_drawn_in_rows(source: ShardSource) -> bool:
    """Whether all operations are draws or elementwise: some of the rows then cost their share."""
    ops = dependencies([source.contents.op])
    return any(op.draw is not None for op in ops) and all(map(as_tileable, ops))


def batches(exchanges: list[Exchange]) -> Iterator[list[Exchange]]:
    """Group exchanges, in order, into batches of at most :data:`BATCH_BYTES` and of one group."""
    batch: list[Exchange] = []
    for each in exchanges:
        is_full = sum(e.num_bytes for e in batch) + each.num_bytes > BATCH_BYTES
        if batch and (is_full or batch[0].group is not each.group):
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


class Scratch:
    """Memory that all batches send from: reused, as page faults cost more than copies."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def packed(self, batch: list[Exchange], index: int) -> list[PackedRows]:
        """Reserve memory for the rows that the rank `index` sends, one place for each exchange."""
        counts = [last - first for first, last in (each.rows_of(index) for each in batch)]
        widths = [each.num_columns * each.record.dtype.itemsize for each in batch]
        sizes = [-(-n * width // 64) * 64 for n, width in zip(counts, widths, strict=True)]
        if sum(sizes) > self._bytes.numel():
            self._bytes = torch.empty(0, dtype=torch.uint8)  # free it before allocating more
            self._bytes = torch.empty(sum(sizes), dtype=torch.uint8)
        places = self._bytes[: sum(sizes)].split(sizes)
        return [
            PackedRows(place.view(each.record.dtype), num_rows, each.columns)
            for place, num_rows, each in zip(places, counts, batch, strict=True)
        ]


def draw_rows(batch: list[Exchange], scratch: Scratch) -> list[PackedRows]:
    """Draw this rank's rows of each exchange, and pack them as they are drawn."""
    index = dtensors.rank_in(batch[0].group)
    wanted = [_rows(each, *each.rows_of(index)) for each in batch]
    with dispatcher.as_eager():
        packed = scratch.packed(batch, index)
    by_contents = dict(zip(wanted, packed, strict=True))

    def deliver(contents: Contents, storage: torch.UntypedStorage) -> None:
        of = by_contents[contents]
        with dispatcher.as_eager():
            of.write(0, memory.flat_view(storage, of.memory.dtype))

    writers = {contents: of.write for contents, of in by_contents.items()}
    replay.replay(wanted, deliver, block_writers=writers)
    return packed


def _rows(each: Exchange, first: int, last: int) -> Contents:
    record, width = each.record, each.num_columns
    size = last - first, width
    strides = contiguous_stride(size)
    offset = record.offset + first * width
    part = intern(size, strides, offset, record.dtype, record.device)
    return copy_of(each.source.contents, part).contents


def exchange(batch: list[Exchange], packed: list[PackedRows]) -> list[torch.Tensor]:
    """Exchange packed rows; returns the values of this rank's shard of each parameter, flattened.

    Each parameter is sent by itself: concatenated in rank order, the received rows are those of the
    shard, in order, so no copy is needed after they have arrived.
    """
    with dispatcher.as_eager():
        return [_exchanged(each, rows) for each, rows in zip(batch, packed, strict=True)]


def _exchanged(each: Exchange, rows: PackedRows) -> torch.Tensor:
    index, num_ranks = dtensors.rank_in(each.group), len(each.columns)
    received = dtensors.all_to_all_bytes(
        rows.memory.view(torch.uint8),
        [size * rows.memory.itemsize for size in rows.sizes],
        [_received(each, index, of) for of in range(num_ranks)],
        each.group,
        each.dtensor.device_mesh.device_type,
    )
    return received.view(each.record.dtype)


def _received(each: Exchange, index: int, of: int) -> int:
    (first, last), (left, right) = each.rows_of(of), each.columns[index]
    return (last - first) * (right - left) * each.record.dtype.itemsize


# Handing exchanged values to the record.


def first_copy(each: Exchange) -> tuple[Op, int] | None:
    """The operation that copied this rank's shard out of the full tensor, and the index of the
    argument that is the slice; None if no operation is known to copy exactly this slice.
    """
    shard: Any = dtensors.shard_of(each.dtensor)
    read = Read(shard._fake_storage.deferred.contents, shard._fake_meta)
    while read.contents != each.source.contents:
        op = read.contents.op
        pair = None if op is None else copy_operands(op)
        if op is None or pair is None or not _same_view(pair[0].record, read.record):
            return None
        read = pair[1]
        if read.contents == each.source.contents and _is_slice(each, read.record):
            return op, op.args.index(read)
    return None


def _same_view(one: Metadata, other: Metadata) -> bool:
    return (one.size, one.stride, one.offset, one.dtype) == (
        other.size, other.stride, other.offset, other.dtype)  # fmt: skip


def _is_slice(each: Exchange, record: Metadata) -> bool:
    ranges = [r[0] for r in local_slices_of(each.name, each.dtensor).ranges]
    full = each.record
    offset = full.offset + sum(s[0] * step for s, step in zip(ranges, full.stride, strict=True))
    sizes = tuple(last - first for first, last in ranges)
    expected = sizes, full.stride, offset, full.dtype
    return (record.size, record.stride, record.offset, record.dtype) == expected


def give(op: Op, index: int, values: torch.Tensor) -> Callable[[], None]:
    """Make `op` read `values` in place of its argument `index`, whose elements they are; if `op`
    only copies this argument, make `values` its result. Returns a function that undoes this.
    """
    before = op.args
    target = copy_operands(op)
    storage = values.untyped_storage()
    if target is not None and _is_whole(target[0], values):
        op.cached, op.gives_up_cached = {target[0].contents.cell: storage}, True
    else:
        op.args = (*before[:index], _given(before[index], values), *before[index + 1 :])

    def undo() -> None:
        op.args, op.cached, op.gives_up_cached = before, None, False

    return undo


def _is_whole(read: Read, values: torch.Tensor) -> bool:
    """Whether `read` covers its whole storage contiguously, with the dtype of `values`."""
    record, num_bytes = read.record, read.contents.cell.num_bytes
    is_dense = record.is_contiguous and record.offset == 0 and num_bytes == values.nbytes
    return is_dense and record.dtype == values.dtype


def _given(read: Read, values: torch.Tensor) -> Read:
    """A read of `values` that replaces `read`."""
    record = read.record
    cell = Cell(values.nbytes, read.contents.cell.device)
    dense = intern(record.size, contiguous_stride(record.size), 0, record.dtype, record.device)
    op = Op(torch.ops.aten.clone.default, (read,), {}, None)
    op.number = read.contents.op.number if read.contents.op is not None else op.number
    op.outputs = (Output(None, cell, dense),)
    op.cached, op.gives_up_cached = {cell: values.untyped_storage()}, True
    return Read(Written(cell, op), dense)
