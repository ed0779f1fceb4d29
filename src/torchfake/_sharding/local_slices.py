"""The elements of a tensor that this rank has.

Input: a tensor, sharded or not. Output: its :class:`LocalSlices`: for each dimension, ranges of
indices of the full tensor. Invariant: the slices have the shape of the shard that they describe; a
shard whose elements cannot be determined is refused by name.

A dimension may be sharded along several axes of a mesh. DTensor reads its placements from left to
right, and writes "sharded by tensor parallelism first, then by FSDP" as a shard with a split
factor. For uneven sizes, the two orders give different shards: FSDP2 splits the shard that it
finds. FSDP2's order is tried first, then DTensor's left-to-right reading.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from torchfake._torch.distributed import dtensors
from torchfake._torch.distributed.dtensors import AxisSplit
from torchfake.errors import CheckpointError

Ranges = tuple[tuple[int, int], ...]
"""Ranges of indices as (start, stop), in order."""


class Chunk(NamedTuple):
    """A part of a shard that is one range in every dimension."""

    offsets: tuple[int, ...]  # in the full tensor
    local_offsets: tuple[int, ...]  # in the shard
    sizes: tuple[int, ...]


class LocalSlices:
    """The slices of a tensor that a rank has.

    Args:
        global_shape: the shape of the full tensor.
        ranges: the ranges of indices, for each dimension.
    """

    def __init__(self, global_shape: tuple[int, ...], ranges: tuple[Ranges, ...]) -> None:
        self.global_shape = global_shape
        self.ranges = ranges
        self.shape = tuple(map(_total_length, ranges))
        self._strides = [math.prod(global_shape[dim + 1 :]) for dim in range(len(global_shape))]
        self._num_outer_dims, self._run_length = self._contiguous_runs()

    @property
    def is_whole(self) -> bool:
        return self.shape == self.global_shape

    def slice_of(self, full: torch.Tensor) -> torch.Tensor:
        """These slices of a full tensor; a view of it, if each dimension has one range."""
        for dim, ranges in enumerate(self.ranges):
            slices = [full.narrow(dim, start, stop - start) for start, stop in ranges]
            if slices:
                full = slices[0] if len(slices) == 1 else torch.cat(slices, dim)
            else:
                full = full.narrow(dim, 0, 0)
        return full

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of the shard: all combinations of one range per dimension."""
        by_dim = [[*zip(_local_starts(ranges), ranges, strict=True)] for ranges in self.ranges]
        for selected in itertools.product(*by_dim):
            yield Chunk(
                tuple(start for _, (start, _) in selected),
                tuple(local_start for local_start, _ in selected),
                tuple(stop - start for _, (start, stop) in selected),
            )

    def byte_runs(self, start: int, stop: int, itemsize: int) -> Iterator[tuple[int, int]]:
        """Locate bytes of the shard, in the order of its elements, in the full tensor.

        Args:
            start: the first byte, counted in the shard.
            stop: the byte after the last.
            itemsize: bytes of an element.

        Yields:
            The offset in the full tensor of a run of contiguous bytes, and its number of bytes.
        """
        run_bytes = self._run_length * itemsize
        while start < stop:
            run, offset_bytes = divmod(start, run_bytes)
            num_bytes = min(run_bytes - offset_bytes, stop - start)
            yield self._run_offset(run) * itemsize + offset_bytes, num_bytes
            start += num_bytes

    def _contiguous_runs(self) -> tuple[int, int]:
        """The longest runs of the shard's elements that are contiguous in the full tensor: the
        number of dimensions outside a run, and the number of elements in a run.
        """
        length, dim = 1, len(self.global_shape)
        while dim > 0 and self.shape[dim - 1] == self.global_shape[dim - 1]:
            dim -= 1
            length *= self.global_shape[dim]
        if dim > 0 and len(self.ranges[dim - 1]) == 1:
            dim -= 1
            length *= self.shape[dim]
        return dim, length

    def _run_offset(self, run: int) -> int:
        """The offset, in elements of the full tensor, at which a run starts."""
        offset, inner = 0, self._num_outer_dims
        if inner < len(self.global_shape) and self.ranges[inner]:
            offset = self.ranges[inner][0][0] * self._strides[inner]
        for dim in reversed(range(inner)):
            run, index = divmod(run, self.shape[dim])
            offset += _global_index(self.ranges[dim], index) * self._strides[dim]
        return offset


def whole(shape: tuple[int, ...]) -> LocalSlices:
    """All of a tensor."""
    return LocalSlices(shape, tuple(((0, size),) for size in shape))


def local_slices_of(name: str, tensor: Any) -> LocalSlices:
    """The slices that this rank has of `tensor`, which may be a DTensor.

    Raises:
        CheckpointError: if they cannot be determined; gives `name`.
    """
    global_shape = tuple(tensor.shape)
    if not dtensors.is_dtensor(tensor):
        return whole(global_shape)
    if dtensors.is_partial_sum(tensor):
        raise CheckpointError(
            f"{name} is a DTensor with a pending sum over the ranks: redistribute() it first"
        )
    splits = dtensors.axis_splits_of(tensor)
    local_shape = tuple(dtensors.shard_of(tensor).shape)
    if splits is None:
        return LocalSlices(global_shape, tuple(() for _ in global_shape))
    found = [
        _ranges(size, local_shape[dim], [s for s in splits if s.dim % len(global_shape) == dim])
        for dim, size in enumerate(global_shape)
    ]
    ranges = [each for each in found if each is not None]
    if len(ranges) < len(global_shape):
        raise CheckpointError(
            f"{name} has the global shape {list(global_shape)} and the local shape "
            f"{list(local_shape)} on this rank, which its placements {list(tensor.placements)} do "
            "not give"
        )
    return LocalSlices(global_shape, tuple(ranges))


def _ranges(size: int, local_size: int, splits: list[AxisSplit]) -> Ranges | None:
    """Indices of a dimension on this rank; None if neither order of splits gives `local_size`."""
    for order in (_order_of_splitting(splits), splits):
        ranges: Ranges = ((0, size),)
        for split in order or ():
            ranges = _apply(ranges, split)
        if order is not None and _total_length(ranges) == local_size:
            return tuple((start, stop) for start, stop in ranges if start < stop)
    return None


def _order_of_splitting(splits: list[AxisSplit]) -> list[AxisSplit] | None:
    """Put each split with a factor after splits into that many parts; None if there are not."""
    order: list[AxisSplit] = []
    pending: list[AxisSplit] = []
    for split in splits:
        pending.append(split)
        while pending and pending[-1].split_factor == 1:
            done = pending.pop()
            order.append(done)
            pending = [
                p._replace(split_factor=_quotient(p.split_factor, done.num_shards)) for p in pending
            ]
    return None if pending else order


def _quotient(number: int, divisor: int) -> int:
    """The quotient; 0 if there is a remainder."""
    return number // divisor if number % divisor == 0 else 0


def _apply(ranges: Ranges, split: AxisSplit) -> Ranges:
    """Split each block of indices, and keep this rank's part; `split_factor` counts the blocks."""
    length = _total_length(ranges)
    num_blocks = max(1, split.split_factor)
    block_size = -(-length // num_blocks)
    kept: list[tuple[int, int]] = []
    for block in range(num_blocks):
        begin, end = min(block * block_size, length), min((block + 1) * block_size, length)
        part_size = -(-(end - begin) // split.num_shards)
        start = min(begin + split.coordinate * part_size, end)
        kept += _subranges(ranges, start, min(start + part_size, end))
    return _merged(kept)


def _subranges(ranges: Ranges, local_start: int, local_stop: int) -> Iterator[tuple[int, int]]:
    """The indices in `ranges` at the positions from `local_start` up to `local_stop`."""
    for local, (start, stop) in zip(_local_starts(ranges), ranges, strict=True):
        shift = start - local
        low, high = max(start, local_start + shift), min(stop, local_stop + shift)
        if low < high:
            yield low, high


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    """Merge adjacent ranges."""
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = merged[-1][0], stop
        else:
            merged.append((start, stop))
    return tuple(merged)


def _local_starts(ranges: Ranges) -> list[int]:
    """The position in the shard at which each range starts."""
    lengths = (stop - start for start, stop in ranges)
    return [0, *itertools.accumulate(lengths)][: len(ranges)]


def _total_length(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _global_index(ranges: Ranges, local_index: int) -> int:
    for local_start, (start, stop) in zip(_local_starts(ranges), ranges, strict=True):
        if local_index < local_start + stop - start:
            return start + local_index - local_start
    raise AssertionError(f"no element {local_index} in {ranges}")
