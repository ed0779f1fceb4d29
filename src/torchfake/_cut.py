"""What a shard was cut from.

Enters: a deferred shard. Leaves: the contents of the whole, and how the whole lies there.
Invariant: between the two there is nothing but copies of parts, which torch's functions have made
in order to shard; of a shard that was changed since, nothing is said.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torchfake import _private_distributed as _distributed
from torchfake._graph import Contents, Deferred, Read, history
from torchfake._metadata import Metadata, intern
from torchfake._ops import plan_of
from torchfake._parts import Part, part_of
from torchfake._pieces import is_factory
from torchfake._tensor import is_deferred_fake
from torchfake._wanted import copied
from torchfake.errors import CheckpointError


class Whole(NamedTuple):
    """A tensor before it was sharded."""

    contents: Contents
    offset: int | None  # of its first element in its storage; None: cut twice, and not known


def whole_of(dtensor: Any) -> Whole | None:
    """What this rank's shard of a deferred `dtensor` was cut from; None if that cannot be told:
    there is nothing of it on this rank, it is real, or was changed after it was cut.
    """
    shard: Any = _distributed.shard_of(dtensor)
    if not is_deferred_fake(shard) or not shard.numel():
        return None
    recorded: Deferred = shard._fake_storage.recorded
    if recorded.real is not None:
        return None
    read = Read(recorded.contents, shard._fake_meta)
    while _is_of_shard(read, dtensor.numel()):
        source = _cut_from(read)
        if source is None:
            return None
        read = source
    return Whole(read.contents, _offset(dtensor, read.record))


def record_of(dtensor: Any, whole: Whole) -> Metadata | None:
    """How the whole lies in its storage; None if that is not known."""
    size, stride = tuple(dtensor.shape), tuple(dtensor.stride())
    offset = whole.offset
    if offset is None and whole.contents.cell.num_bytes == dtensor.numel() * dtensor.dtype.itemsize:
        offset = 0
    if offset is None:
        return None
    device = _distributed.shard_of(dtensor)._fake_meta.device  # type: ignore[attr-defined]
    return intern(size, stride, offset, dtensor.dtype, device)


def _is_of_shard(read: Read, num_elements: int) -> bool:
    """Whether that is a shard, and not the whole of so many elements: there is no room for them, or
    sharding is behind it.
    """
    contents, record = read
    if contents.cell.num_bytes < num_elements * record.dtype.itemsize:
        return True
    return contents.op is not None and any(op.is_sharding for op in history([contents.op]))


def _cut_from(read: Read) -> Read | None:
    """Where the elements of `read` come from, if they are copied from there as they are."""
    op = read.contents.op
    if op is None or not op.is_sharding:
        return None
    pair = copied(op)
    if pair is not None:
        target, source = pair
        is_all = math.prod(target.record.size) >= math.prod(read.record.size)
        return source if is_all and target.record.dtype == source.record.dtype else None
    if not hasattr(op.func, "_schema") or not op.args or type(op.args[0]) is not Read:
        return None
    packet = plan_of(op.func).packet
    takes_shape = is_factory(op) and packet.startswith("aten::new_")
    return op.args[0] if takes_shape or packet in _PASSED_ON else None


_PASSED_ON = frozenset({"aten::constant_pad_nd", "aten::_pin_memory"})


def _offset(dtensor: Any, part: Metadata) -> int | None:
    """Where the whole begins, from what was taken of it."""
    cuts = [cut for cut in _distributed.cuts_of(dtensor) or () if cut.num > 1]
    if not cuts:
        return part.offset
    own = _part(dtensor)
    if len(cuts) > 1 or own is None:
        return None
    starts = [stretches[0][0] if stretches else 0 for stretches in own.stretches]
    before: int = sum(i * step for i, step in zip(starts, dtensor.stride(), strict=True))
    return part.offset - before


def _part(dtensor: Any) -> Part | None:
    try:
        return part_of("", dtensor)
    except CheckpointError:
        return None
