"""What a deferred shard was sliced from.

Input: a DTensor of a deferred shard. Output: its :class:`ShardSource`: the contents of the full
tensor, and how the full tensor lies in them. Invariant: between the two there is nothing but copies
of slices, which torch's functions made in order to shard; a shard that was changed since has no
source.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torchfake._core.metadata import Metadata, intern
from torchfake._core.schemas import traits_of
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import Contents, Read, dependencies
from torchfake._replay.demand_analysis import copy_operands
from torchfake._replay.tiling import is_factory
from torchfake._sharding.local_slices import LocalSlices, local_slices_of
from torchfake._tensor.fake_tensor import is_deferred_fake
from torchfake._torch.distributed import dtensors
from torchfake.errors import CheckpointError


class ShardSource(NamedTuple):
    """A tensor before it was sharded."""

    contents: Contents
    offset: int | None  # of its first element in its storage; None: sharded twice, and not known


def shard_source(dtensor: Any) -> ShardSource | None:
    """What this rank's shard of a deferred `dtensor` was sliced from; None if it is not known: the
    shard is empty on this rank, it is real, or it was changed after it was sliced.
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


def source_metadata(dtensor: Any, source: ShardSource) -> Metadata | None:
    """How the full tensor lies in its storage; None if that is not known."""
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
    """Whether a shard is read, and not the full tensor of `num_elements`: the contents are too
    small for it, or an operation that shards led to them.
    """
    contents, record = read
    if contents.cell.num_bytes < num_elements * record.dtype.itemsize:
        return True
    return contents.op is not None and any(op.is_sharding for op in dependencies([contents.op]))


def _copied_from(read: Read) -> Read | None:
    """Where the elements of `read` come from, if they are copied from there unchanged."""
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
    """Where the full tensor starts in its storage, computed from the slice that was read of it."""
    splits = [s for s in dtensors.axis_splits_of(dtensor) or () if s.num_shards > 1]
    if not splits or math.prod(sliced.size) == dtensor.numel():  # cut later, of a copy of all
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
