"""The source of a deferred shard: the full tensor that the shard was sliced from.

Input: a DTensor of a deferred shard. Output: its :class:`ShardSource`: the contents of the full
tensor's storage, and the full tensor's offset in it. Invariant: only copies of slices, which
torch's sharding functions made, lie between source and shard; a shard that was changed since has no
source.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from torchfake._core.metadata import Metadata, contiguous_stride, intern
from torchfake._core.schemas import traits_of
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import Cell, Contents, Op, Output, Read, Written, dependencies
from torchfake._replay.demand_analysis import copy_operands
from torchfake._replay.tiling import is_factory
from torchfake._sharding.local_slices import LocalSlices, local_slices_of
from torchfake._tensor.fake_tensor import is_deferred_fake
from torchfake._torch.distributed import dtensors
from torchfake.errors import CheckpointError


class ShardSource(NamedTuple):
    """A tensor before it was sharded."""

    contents: Contents
    offset: int | None  # its first element in the storage; None: unknown, since sharded twice


def shard_source(dtensor: Any) -> ShardSource | None:
    """The source of this rank's shard of a deferred `dtensor`; None if the source is not known: the
    shard is empty on this rank, or real, or was changed after it was sliced.
    """
    shard: Any = dtensors.shard_of(dtensor)
    if not is_deferred_fake(shard) or not shard.numel():
        return None
    deferred: DeferredState = shard._fake_storage.deferred
    if deferred.real is not None:
        return None
    read = Read(deferred.contents, shard._fake_meta)
    while _is_shard(read, dtensor.numel()):
        copied_from = _copied_from(read)
        if copied_from is None:
            return None
        read = copied_from
    return ShardSource(read.contents, _source_offset(dtensor, read.record))


class FullTensor(NamedTuple):
    """A tensor before it was sharded."""

    contents: Contents
    record: Metadata  # how it lies in them


def full_tensor(dtensor: Any) -> FullTensor | None:
    """The tensor that this rank's shard was sliced from; None if it is not known."""
    source = shard_source(dtensor)
    record = None if source is None else source_metadata(dtensor, source)
    if source is None or record is None:
        return None
    return FullTensor(source.contents, record)


def copy_of(contents: Contents, record: Metadata) -> FullTensor:
    """A contiguous copy of what `record` describes of `contents`."""
    dense = intern(record.size, contiguous_stride(record.size), 0, record.dtype, record.device)
    cell = Cell(math.prod(record.size) * record.dtype.itemsize, contents.cell.device)
    op = Op(torch.ops.aten.clone.default, (Read(contents, record),), {}, None)
    op.outputs = (Output(None, cell, dense),)
    return FullTensor(Written(cell, op), dense)


def source_metadata(dtensor: Any, source: ShardSource) -> Metadata | None:
    """The metadata of the full tensor; None if its offset in the storage is not known."""
    size, stride = tuple(dtensor.shape), tuple(dtensor.stride())
    num_bytes = dtensor.numel() * dtensor.dtype.itemsize
    offset = source.offset
    if offset is None and source.contents.cell.num_bytes == num_bytes:
        offset = 0
    if offset is None:
        return None
    device = dtensors.shard_of(dtensor)._fake_meta.device  # type: ignore[attr-defined]
    return intern(size, stride, offset, dtensor.dtype, device)


def _is_shard(read: Read, num_elements: int) -> bool:
    """Whether `read` is of a shard, and not of the full tensor with `num_elements` elements: the
    storage is too small for the full tensor, or a sharding operation has contributed to it.
    """
    contents, record = read
    if contents.cell.num_bytes < num_elements * record.dtype.itemsize:
        return True
    return contents.op is not None and any(op.is_sharding for op in dependencies([contents.op]))


def _copied_from(read: Read) -> Read | None:
    """The read that a sharding operation copied `read` from; None if values were changed."""
    op = read.contents.op
    if op is None or not op.is_sharding:
        return None
    operands = copy_operands(op)
    if operands is not None:
        target, source = operands
        is_complete = math.prod(target.record.size) >= math.prod(read.record.size)
        has_same_dtype = target.record.dtype == source.record.dtype
        return source if is_complete and has_same_dtype else None
    if not hasattr(op.func, "_schema") or not op.args or type(op.args[0]) is not Read:
        return None
    packet = traits_of(op.func).packet
    takes_shape = is_factory(op) and packet.startswith("aten::new_")
    return op.args[0] if takes_shape or packet in _COPY_FIRST_ARGUMENT else None


_COPY_FIRST_ARGUMENT = frozenset({"aten::constant_pad_nd", "aten::_pin_memory"})


def _source_offset(dtensor: Any, sliced: Metadata) -> int | None:
    """The offset of the full tensor in its storage, computed from the slice taken of it."""
    splits = [s for s in dtensors.axis_splits_of(dtensor) or () if s.num_shards > 1]
    if not splits or math.prod(sliced.size) == dtensor.numel():  # sliced from a copy of it all
        return sliced.offset
    slices = _local_slices(dtensor)
    if len(splits) > 1 or slices is None:
        return None
    starts = [ranges[0][0] if ranges else 0 for ranges in slices.ranges]
    skipped: int = sum(i * step for i, step in zip(starts, dtensor.stride(), strict=True))
    return sliced.offset - skipped


def _local_slices(dtensor: Any) -> LocalSlices | None:
    try:
        return local_slices_of("", dtensor)
    except CheckpointError:
        return None
