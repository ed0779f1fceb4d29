"""Which elements of a tensor this rank has.

Enters: a tensor, sharded or not. Leaves: its part: of each dimension, stretches of the whole's.
Invariant: a part has the shape of the shard that it describes, element for element; what cannot be
told is refused, by name.

A dimension may be cut along several axes of a mesh. DTensor reads its placements from left to
right, and writes "cut by tensor parallelism first, then by FSDP" as a shard with a factor. Where
sizes are uneven the two do not give the same: FSDP2 cuts the shard it finds, which is what counts
here, and what DTensor would make of the placements is tried after that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from torchfake import _private_distributed as _distributed
from torchfake._private_distributed import Cut
from torchfake.errors import CheckpointError

Stretches = tuple[tuple[int, int], ...]
"""From the first to before the last element of each, in order."""


class Box(NamedTuple):
    """A part without gaps."""

    offsets: tuple[int, ...]  # in the whole
    own_offsets: tuple[int, ...]  # in the shard
    sizes: tuple[int, ...]


class Part:
    """What a rank has of a tensor.

    Args:
        whole: the shape of the tensor.
        stretches: of each dimension.
    """

    def __init__(self, whole: tuple[int, ...], stretches: tuple[Stretches, ...]) -> None:
        self.whole = whole
        self.stretches = stretches
        self.shape = tuple(map(_length, stretches))
        self._strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
        self._num_outer, self._run = self._runs()

    @property
    def is_whole(self) -> bool:
        return self.shape == self.whole

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor that is there as a whole; a view of it, if it has no gaps."""
        for dim, stretches in enumerate(self.stretches):
            pieces = [tensor.narrow(dim, first, last - first) for first, last in stretches]
            if pieces:
                tensor = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
            else:
                tensor = tensor.narrow(dim, 0, 0)
        return tensor

    def boxes(self) -> Iterator[Box]:
        """The pieces without gaps that it consists of."""
        pieces = [[*zip(_own_offsets(s), s, strict=True)] for s in self.stretches]
        for chosen in itertools.product(*pieces):
            yield Box(
                tuple(first for _, (first, _) in chosen),
                tuple(own for own, _ in chosen),
                tuple(last - first for _, (first, last) in chosen),
            )

    def runs(self, first: int, last: int, itemsize: int) -> Iterator[tuple[int, int]]:
        """Where bytes of the shard, in order of its elements, are in the whole.

        Args:
            first: a byte of the shard.
            last: the byte behind the last.
            itemsize: bytes of an element.

        Yields:
            The place of the first byte in the whole, and how many follow it there.
        """
        run = self._run * itemsize
        while first < last:
            number, within = divmod(first, run)
            num_bytes = min(run - within, last - first)
            yield self._begin(number) * itemsize + within, num_bytes
            first += num_bytes

    def _runs(self) -> tuple[int, int]:
        """How many dimensions are walked through, and how many elements lie together inside."""
        run, dim = 1, len(self.whole)
        while dim > 0 and self.shape[dim - 1] == self.whole[dim - 1]:
            dim -= 1
            run *= self.whole[dim]
        if dim > 0 and len(self.stretches[dim - 1]) == 1:
            dim -= 1
            run *= self.shape[dim]
        return dim, run

    def _begin(self, number: int) -> int:
        """The element of the whole that a run begins with."""
        place = 0
        if self._num_outer < len(self.whole) and self.stretches[self._num_outer]:
            place = self.stretches[self._num_outer][0][0] * self._strides[self._num_outer]
        for dim in reversed(range(self._num_outer)):
            number, index = divmod(number, self.shape[dim])
            place += _element(self.stretches[dim], index) * self._strides[dim]
        return place


def part_of(name: str, tensor: Any) -> Part:
    """What this rank has of `tensor`, of whatever kind.

    Raises:
        CheckpointError: if that cannot be told, by name.
    """
    whole = tuple(tensor.shape)
    if not isinstance(tensor, _distributed.dtensor_class()):
        return Part(whole, tuple(((0, size),) for size in whole))
    if _distributed.is_unfinished_sum(tensor):
        raise CheckpointError(
            f"{name} is a sum over the ranks that is yet to be done: redistribute() it first"
        )
    cuts = _distributed.cuts_of(tensor)
    own = tuple(_distributed.shard_of(tensor).shape)
    if cuts is None:
        return Part(whole, tuple(() for _ in whole))
    stretches = [
        _stretches(size, own[dim], [cut for cut in cuts if cut.dim % len(whole) == dim])
        for dim, size in enumerate(whole)
    ]
    found = [each for each in stretches if each is not None]
    if len(found) < len(whole):
        raise CheckpointError(
            f"{name}, {list(whole)} as a whole, is {list(own)} on this rank, which its placements "
            f"{list(tensor.placements)} do not give"
        )
    return Part(whole, tuple(found))


def _stretches(size: int, own: int, cuts: list[Cut]) -> Stretches | None:
    """What is left of a dimension; None if no way to read the cuts gives `own` elements."""
    for order in (_in_order_of_cutting(cuts), cuts):
        left: Stretches = ((0, size),)
        for cut in order or ():
            left = _after(left, cut)
        if order is not None and _length(left) == own:
            return tuple((first, last) for first, last in left if first < last)
    return None


def _in_order_of_cutting(cuts: list[Cut]) -> list[Cut] | None:
    """Those with a factor behind so many parts, as plain ones; None if there are not so many."""
    order: list[Cut] = []
    waiting: list[Cut] = []
    for cut in cuts:
        waiting.append(cut)
        while waiting and waiting[-1].factor == 1:
            done = waiting.pop()
            order.append(done)
            waiting = [
                w._replace(factor=w.factor // done.num if w.factor % done.num == 0 else 0)
                for w in waiting
            ]
    return None if waiting else order


def _after(stretches: Stretches, cut: Cut) -> Stretches:
    """What one cut leaves: of each of so many pieces as its factor says, one part."""
    total = _length(stretches)
    step = -(-total // max(1, cut.factor))
    kept: list[tuple[int, int]] = []
    for piece in range(max(1, cut.factor)):
        begin, end = min(piece * step, total), min((piece + 1) * step, total)
        size = -(-(end - begin) // cut.num)
        first = min(begin + cut.place * size, end)
        kept += _between(stretches, first, min(first + size, end))
    return _joined(kept)


def _between(stretches: Stretches, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Of their elements, counted through, those from `first` to before `last`."""
    for own, (begin, end) in zip(_own_offsets(stretches), stretches, strict=True):
        shift = begin - own
        low, high = max(begin, first + shift), min(end, last + shift)
        if low < high:
            yield low, high


def _joined(stretches: list[tuple[int, int]]) -> Stretches:
    joined: list[tuple[int, int]] = []
    for first, last in stretches:
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return tuple(joined)


def _own_offsets(stretches: Stretches) -> list[int]:
    lengths = (last - first for first, last in stretches)
    return [0, *itertools.accumulate(lengths)][: len(stretches)]


def _length(stretches: Stretches) -> int:
    return sum(last - first for first, last in stretches)


def _element(stretches: Stretches, index: int) -> int:
    for own, (first, last) in zip(_own_offsets(stretches), stretches, strict=True):
        if index < own + last - first:
            return first + index - own
    raise AssertionError("no such element")
