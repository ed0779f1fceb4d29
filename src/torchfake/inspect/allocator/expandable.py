"""Expandable segments: long ranges of addresses, to which memory is mapped page by page.

Input: a pool, a stream, a size. Output: a free block of at least that size. Invariant: memory is
mapped and unmapped in whole pages, 2 MiB in the small pool and 20 MiB in the large one.
"""

from __future__ import annotations

from collections.abc import Callable

from torchfake.inspect.allocator.blocks import Block, BlockPool, merge
from torchfake.inspect.allocator.device_memory import DeviceMemory

Report = Callable[[str, int, int, int], None]
"""Called with each action on memory: its name, address, bytes and stream."""


class ExpandableSegment:
    """A range of addresses, in pages."""

    def __init__(self, address: int, num_bytes: int, page_bytes: int) -> None:
        self.address, self.page_bytes = address, page_bytes
        self.num_bytes = -(-num_bytes // page_bytes) * page_bytes

    def page_before(self, address: int) -> int:
        """The first address of the page that `address` is in."""
        return address - (address - self.address) % self.page_bytes

    def page_after(self, address: int) -> int:
        """The first address of the first page that begins at or after `address`."""
        return address + -(address - self.address) % self.page_bytes


class ExpandableSegments:
    """All expandable segments of a device."""

    def __init__(self, memory: DeviceMemory, large_page_bytes: int, report: Report) -> None:
        self._memory, self._large_page_bytes, self._report = memory, large_page_bytes, report

    def allocate(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        """Map memory for a block of at least `size`, and return the block, removed from its pool;
        None if there is not enough memory: ``try_allocate_expandable_block``.
        """
        block = self._find(pool, stream, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:  # the block is free, and addresses without memory follow
            following = block.next
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def _find(self, pool: BlockPool, stream: int, size: int) -> Block:
        """The lowest block with room for `size`, or a new segment: ``find_expandable_block``."""
        for unmapped in pool.unmapped_blocks(stream):
            before = unmapped.previous
            block = before if before is not None and before.is_free else unmapped
            if _has_room(block, size):
                return block
        page_bytes = (2 << 20) if pool.is_small else self._large_page_bytes
        total = self._memory.total_bytes
        # an eighth more addresses than the device has memory, because unmapped pages leave holes
        num_bytes = -(-(total + total // 8) // page_bytes) * page_bytes
        segment = ExpandableSegment(self._memory.new_addresses(num_bytes), num_bytes, page_bytes)
        block = Block(pool, stream, segment.address, num_bytes)
        block.mapped, block.expandable = False, segment
        pool.add_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map memory behind the first `size` bytes of a block, in whole pages: ``map_block``."""
        segment, pool = block.expandable, block.pool
        mapped = segment.page_after(block.address + size) - block.address
        if not self._memory.take(mapped):
            return False
        pool.remove_unmapped(block)
        block.mapped = True
        address = block.address
        if mapped < block.size:
            rest = Block(pool, block.stream, address + mapped, block.size - mapped)
            rest.mapped, rest.expandable = False, segment
            rest.insert_between(block, block.next)
            pool.add_unmapped(rest)
            block.size = mapped
        merge(block, block.previous)
        merge(block, block.next)
        pool.add(block)
        self._report("segment_map", address, mapped, block.stream)
        return True

    def unmap(self, block: Block) -> None:
        """Unmap the whole pages of a free block: ``unmap_block``."""
        segment, pool = block.expandable, block.pool
        start = segment.page_after(block.address)
        end = segment.page_before(block.address + block.size)
        if start >= end:
            return
        pool.remove(block)
        parts = (block.address, start), (end, block.address + block.size)
        for (first, last), is_before in zip(parts, (True, False), strict=True):
            if last > first:
                part = Block(pool, block.stream, first, last - first)
                part.expandable = segment
                neighbours = (block.previous, block) if is_before else (block, block.next)
                part.insert_between(*neighbours)
                pool.add(part)
        block.address, block.size, block.mapped = start, end - start, False
        merge(block, block.previous)
        merge(block, block.next)
        self._memory.give_back(end - start)
        self._report("segment_unmap", start, end - start, block.stream)
        if block.is_split:
            pool.add_unmapped(block)
        # else the segment has no memory left, and is dropped


def expandable_size(block: Block) -> int:
    """The size of a block, plus that of the addresses without memory that follow it."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _has_room(block: Block, size: int) -> bool:
    found, following = 0, block
    while found < size and following is not None and following.is_free:
        found += following.size
        following = following.next  # type: ignore[assignment]
    return found >= size
