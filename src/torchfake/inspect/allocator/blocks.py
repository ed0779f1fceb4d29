"""Blocks, into which segments are divided, and the pools in which free blocks are cached.

Input: addresses and sizes. Output: blocks with their neighbours; the smallest block that fits a
request. Invariant: the blocks of a segment lie side by side, without gaps; two free neighbours are
merged, unless only one of them has memory behind it.
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
        self.requested = 0  # bytes of the last request
        self.allocated = False
        self.mapped = True  # whether there is memory behind its addresses
        self.expandable: Any = None  # the block's segment, if that is expandable
        self.previous: Block | None = None  # neighbours in the segment
        self.next: Block | None = None
        self.used_on: set[int] = set()  # streams recorded by record_stream
        self.pending = 0  # the number of streams to wait for before the block is free
        self.born = 0  # the pool's count of searches when the block became free
        self.tag: Any = None  # what the block was allocated for

    @property
    def is_split(self) -> bool:
        """Whether the block is only a part of its segment."""
        return self.previous is not None or self.next is not None

    @property
    def is_free(self) -> bool:
        """Whether the block is not allocated, and no stream may still be using it."""
        return not (self.allocated or self.pending or self.used_on)

    def insert_between(self, before: Block | None, after: Block | None) -> None:
        """Link the block between two neighbours."""
        self.previous, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.previous = self


class BlockPool:
    """The free blocks of one kind, by stream: small requests or large ones."""

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.num_searches = 0  # the clock for the age of blocks, in garbage collection
        self._free: dict[int, list[tuple[int, int]]] = {}  # sorted (size, address), by stream
        self._unmapped: dict[int, list[int]] = {}  # sorted addresses, by stream
        self._blocks: dict[int, Block] = {}  # free and unmapped blocks, by address

    def add(self, block: Block) -> None:
        """Cache a free block."""
        block.born = self.num_searches
        insort(self._free.setdefault(block.stream, []), (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Remove a free block."""
        entries = self._free[block.stream]
        del entries[bisect_left(entries, (block.size, block.address))]
        del self._blocks[block.address]

    def add_unmapped(self, block: Block) -> None:
        """Add a block of addresses without memory."""
        insort(self._unmapped.setdefault(block.stream, []), block.address)
        self._blocks[block.address] = block

    def remove_unmapped(self, block: Block) -> None:
        """Remove a block of addresses without memory."""
        entries = self._unmapped[block.stream]
        del entries[bisect_left(entries, block.address)]
        del self._blocks[block.address]

    def smallest(self, size: int, stream: int) -> Block | None:
        """The first block of :meth:`at_least`, if there is one."""
        entries = self._free.get(stream)
        if not entries:
            return None
        index = bisect_left(entries, (size, 0))
        return self._blocks[entries[index][1]] if index < len(entries) else None

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
        """The blocks of a stream without memory, the lowest address first."""
        return [self._blocks[address] for address in self._unmapped.get(stream, [])]


def merge(block: Block, neighbour: Block | None) -> None:
    """Merge a neighbour into a free block, if the neighbour is free, and has memory behind it if
    and only if the block has: ``try_merge_blocks``.
    """
    if neighbour is None or neighbour.allocated:
        return
    if not neighbour.is_free or neighbour.mapped != block.mapped:
        return
    pool = block.pool
    (pool.remove if neighbour.mapped else pool.remove_unmapped)(neighbour)
    if block.previous is neighbour:
        block.address = neighbour.address
        block.insert_between(neighbour.previous, block.next)
    else:
        block.insert_between(block.previous, neighbour.next)
    block.size += neighbour.size
