"""Blocks, into which segments are divided, and the pools in which free ones are cached.

Input: addresses and sizes. Output: blocks that know their neighbours; the smallest that fits a
request. Invariant: the blocks of a segment lie side by side, without gaps; two free neighbours are
one block, unless only one of them has memory behind it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any


class Block:
    """A part of a segment: allocated, free, or addresses without memory."""

    __slots__ = (
        "address", "allocated", "born", "expandable", "mapped", "next", "pending", "pool",
        "previous", "requested", "size", "stream", "tag", "used_on",
    )  # fmt: skip

    def __init__(self, pool: BlockPool, stream: int, address: int, size: int) -> None:
        self.pool, self.stream, self.address, self.size = pool, stream, address, size
        self.requested = 0  # bytes, when it was last allocated
        self.allocated = False
        self.mapped = True  # there is memory behind its addresses
        self.expandable: Any = None  # the segment that it is of, if that can grow
        self.previous: Block | None = None  # neighbours in the segment
        self.next: Block | None = None
        self.used_on: set[int] = set()  # streams recorded by record_stream
        self.pending = 0  # streams that are still to be waited for before it is free
        self.born = 0  # the pool's count of searches when it became free
        self.tag: Any = None  # what it was allocated for

    @property
    def is_split(self) -> bool:
        """Whether it is a part of a segment, not all of it."""
        return self.previous is not None or self.next is not None

    @property
    def is_free(self) -> bool:
        """Whether nobody uses it, or may still be using it."""
        return not (self.allocated or self.pending or self.used_on)

    def insert_between(self, before: Block | None, after: Block | None) -> None:
        """Become the neighbour of both."""
        self.previous, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.previous = self


class BlockPool:
    """The free blocks of one kind, by stream: small requests or large ones."""

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.num_searches = 0  # counted for the age of blocks, if garbage is collected
        self._free: dict[int, list[tuple[int, int]]] = {}  # sorted (size, address), by stream
        self._unmapped: dict[int, list[int]] = {}  # sorted addresses, by stream
        self._blocks: dict[int, Block] = {}  # all of these, by address

    def add(self, block: Block) -> None:
        """Cache a free block."""
        block.born = self.num_searches
        insort(self._free.setdefault(block.stream, []), (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Take a block out, to use it or to give it back."""
        entries = self._free[block.stream]
        del entries[bisect_left(entries, (block.size, block.address))]
        del self._blocks[block.address]

    def add_unmapped(self, block: Block) -> None:
        """Keep addresses that have no memory."""
        insort(self._unmapped.setdefault(block.stream, []), block.address)
        self._blocks[block.address] = block

    def remove_unmapped(self, block: Block) -> None:
        """Take such addresses out."""
        entries = self._unmapped[block.stream]
        del entries[bisect_left(entries, block.address)]
        del self._blocks[block.address]

    def at_least(self, size: int, stream: int) -> Iterator[Block]:
        """The free blocks of a stream of `size` or more, the smallest first, then the lowest."""
        entries = self._free.get(stream, [])
        for i in range(bisect_left(entries, (size, 0)), len(entries)):
            yield self._blocks[entries[i][1]]

    def below(self, size: int, stream: int) -> list[Block]:
        """The free blocks of a stream that are smaller than `size`, the largest first."""
        entries = self._free.get(stream, [])
        found = entries[: bisect_left(entries, (size, 0))]
        return [self._blocks[address] for _, address in reversed(found)]

    def free_blocks(self) -> list[Block]:
        """All free blocks, by stream, size and address."""
        return [self._blocks[a] for stream in sorted(self._free) for _, a in self._free[stream]]

    def unmapped_blocks(self, stream: int) -> list[Block]:
        """The addresses of a stream that have no memory, the lowest first."""
        return [self._blocks[address] for address in self._unmapped.get(stream, [])]


def merge(block: Block, neighbour: Block | None) -> None:
    """Let a block take up its neighbour, if that is free and of the same kind:
    ``try_merge_blocks``.
    """
    if neighbour is None or not neighbour.is_free or neighbour.mapped != block.mapped:
        return
    pool = block.pool
    (pool.remove if neighbour.mapped else pool.remove_unmapped)(neighbour)
    if block.previous is neighbour:
        block.address = neighbour.address
        block.insert_between(neighbour.previous, block.next)
    else:
        block.insert_between(block.previous, neighbour.next)
    block.size += neighbour.size
