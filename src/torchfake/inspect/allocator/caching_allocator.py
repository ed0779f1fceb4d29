"""The caching allocator: a request gets a cached block if one fits, otherwise a new segment.

Input: requests and frees, each on a stream. Output: blocks; reserved and allocated bytes, current
and peak. Invariant: reserved bytes are taken from the device; allocated bytes are a part of them.

A request is rounded and searched for in the pool (best fit). If no block fits, a segment is taken
from the device; if that fails, cached blocks are released first. A block that is too large is
split. A freed block waits for other streams that use it, is merged with free neighbours, and
cached. The docstrings of methods name the functions of torch that they model.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from torchfake.inspect.allocator.blocks import Block, BlockPool, merge
from torchfake.inspect.allocator.device_memory import DeviceMemory
from torchfake.inspect.allocator.expandable import ExpandableSegments, expandable_size
from torchfake.inspect.allocator.settings import DEFAULT_SETTINGS, UNLIMITED, AllocatorSettings
from torchfake.inspect.allocator.sizes import (
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    rounded,
    segment_bytes,
)


class OutOfMemory(Exception):
    """The device has too little memory for a request, after all cached blocks were released."""


@dataclass(frozen=True)
class TraceEntry:
    """One action of the allocator, as in torch's memory history."""

    action: str  # "alloc", "free_requested", "free_completed", "segment_alloc", ...
    address: int
    num_bytes: int
    stream: int
    tag: Any = None  # what the memory is for


class CachingAllocator:
    """A model of CUDA's caching allocator on one device.

    Args:
        settings: the options of ``PYTORCH_CUDA_ALLOC_CONF``.
        memory: the device; by default one with unlimited memory.
        trace: whether to record all actions in ``trace``.
    """

    def __init__(
        self,
        settings: AllocatorSettings = DEFAULT_SETTINGS,
        memory: DeviceMemory | None = None,
        *,
        trace: bool = False,
    ) -> None:
        self.settings = settings
        self.memory = DeviceMemory() if memory is None else memory
        self.small, self.large = BlockPool(is_small=True), BlockPool(is_small=False)
        self.active: dict[int, Block] = {}  # allocated or waiting for streams, by address
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.allocated_at_peak_bytes = 0  # allocated when reserved memory first reached its peak
        self.num_retries = 0  # requests for which all cached blocks were released
        self.trace: list[TraceEntry] | None = [] if trace else None
        self._tag: Any = None  # of the current request
        self._waiting: list[Block] = []  # freed blocks that other streams may still use
        self._segments = ExpandableSegments(
            self.memory, settings.large_segment_bytes, self._report_action
        )
        share = settings.per_process_memory_fraction
        self._allowed_bytes = int(share * self.memory.total_bytes) if share < 1.0 else None
        # as in torch, garbage is collected only if a share of the device is set
        threshold = settings.garbage_collection_threshold
        self._collects_garbage = self._allowed_bytes is not None and threshold > 0
        self._sizes: dict[int, int] = {}  # of the blocks for requests

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the device."""
        return self.memory.taken_bytes

    # Allocation -----------------------------------------------------------------------------------

    def allocate(self, num_bytes: int, stream: int = 0, tag: Any = None) -> Block:
        """Allocate a block for a request: ``malloc``.

        Raises:
            OutOfMemory: if there is not enough memory.
        """
        self._tag = tag
        if self._waiting:
            self._finish_streams()
        size = self._sizes.get(num_bytes)
        if size is None:
            size = self._sizes[num_bytes] = rounded(num_bytes, self.settings)
        pool = self.small if size <= SMALL_BYTES else self.large
        block = self._cached_block(pool, size, stream) or self._new_block(pool, size, stream)
        if self._is_to_be_split(block, size):
            block = self._split(block, size)
        block.allocated, block.requested, block.tag = True, num_bytes, tag
        self.active[block.address] = block
        if self.trace is not None:
            self._report("alloc", block)
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        if self.memory.taken_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.memory.taken_bytes
            self.allocated_at_peak_bytes = self.allocated_bytes
        return block

    def _cached_block(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        """The smallest cached block that fits, taken out of its pool: ``get_free_block``."""
        if self._collects_garbage:
            pool.num_searches += 1
        found = pool.smallest(size, stream)
        if found is None:
            return None
        if found.expandable is not None:
            candidates = pool.at_least(size, stream)
            for following in islice(
                candidates, 1, None
            ):  # best fit: the block that can grow the least
                if expandable_size(following) >= expandable_size(found):
                    break
                found = following
        limit = self.settings.max_split_bytes
        if size < limit <= found.size:
            return None
        if size >= limit and found.size >= size + self.settings.max_non_split_rounding_bytes:
            return None
        pool.remove(found)
        return found

    def _new_block(self, pool: BlockPool, size: int, stream: int) -> Block:
        """A block in new memory of the device; if that fails, cached blocks are released first."""
        if self._collects_garbage:
            self._collect_garbage()
        block = self._ask_device(pool, size, stream)
        if block is None and self._release_large_enough(pool, size, stream):
            block = self._ask_device(pool, size, stream)
        if block is None:
            self.empty_cache()
            self.num_retries += 1
            block = self._ask_device(pool, size, stream)
        if block is None:
            self._report_action("oom", 0, size, stream)
            raise OutOfMemory(f"{size} bytes with {self.reserved_bytes} reserved")
        return block

    def _ask_device(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        """A block in a new or grown segment, or None without enough memory: ``alloc_block``."""
        num_bytes = segment_bytes(size, self.settings)
        allowed = self._allowed_bytes
        if allowed is not None and self.reserved_bytes + num_bytes > allowed:
            return None
        if self.settings.expandable_segments:
            return self._segments.allocate(pool, stream, size)
        if not self.memory.take(num_bytes):
            return None
        block = Block(pool, stream, self.memory.new_addresses(num_bytes), num_bytes)
        self._report("segment_alloc", block)
        return block

    def _is_to_be_split(self, block: Block, size: int) -> bool:
        """Whether a block is so large that its rest is split off: ``should_split``."""
        rest = block.size - size
        if block.pool.is_small or self.settings.expandable_segments:
            return rest >= MIN_BLOCK_BYTES
        return size < self.settings.max_split_bytes and rest > SMALL_BYTES

    def _split(self, rest: Block, size: int) -> Block:
        """Split a block: return its first `size` bytes, cache the rest: ``alloc_found_block``."""
        block = Block(rest.pool, rest.stream, rest.address, size)
        block.expandable = rest.expandable
        block.insert_between(rest.previous, rest)
        rest.address += size
        rest.size -= size
        rest.pool.add(rest)
        return block

    # Freeing --------------------------------------------------------------------------------------

    def free(self, block: Block) -> None:
        """Free a block: ``free``. A block that other streams use is cached after they finish."""
        block.allocated = False
        self.allocated_bytes -= block.size
        if self.trace is not None:
            self._report("free_requested", block)
        if block.used_on:
            block.pending = len(block.used_on)
            block.used_on = set()
            self._waiting.append(block)
        else:
            self._cache(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that another stream uses a block: ``recordStream``."""
        if stream != block.stream:
            block.used_on.add(stream)

    def streams_finished(self, block: Block) -> bool:
        """Whether the streams that use a freed block have finished by the next allocation. Always
        True, the earliest moment, since the duration of kernels is not known here.
        """
        return True

    def _finish_streams(self) -> None:
        """Cache freed blocks whose streams have finished: ``process_events``."""
        waiting, self._waiting = self._waiting, []
        for block in waiting:
            self._finish(block) if self.streams_finished(block) else self._waiting.append(block)

    def _finish(self, block: Block) -> None:
        block.pending = 0
        self._cache(block)

    def _cache(self, block: Block) -> None:
        """Merge a block with free neighbours and cache it: ``free_block``."""
        if self.trace is not None:
            self._report("free_completed", block)
        del self.active[block.address]
        block.tag = None
        merge(block, block.previous)
        merge(block, block.next)
        block.pool.add(block)

    # Release --------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Release cached blocks that are whole segments or contain whole pages:
        ``release_cached_blocks``.
        """
        waiting, self._waiting = self._waiting, []
        for block in waiting:  # torch synchronizes the device here
            self._finish(block)
        for pool in (self.large, self.small):
            cached = pool.free_blocks()
            for block in cached:
                if block.expandable is None and not block.is_split:
                    self._release(block)
            for block in cached:
                if block.expandable is not None:
                    self._segments.unmap(block)

    def _release(self, block: Block) -> None:
        """Return a whole segment to the device: ``release_block``."""
        block.pool.remove(block)
        self.memory.give_back(block.size)
        self._report("segment_free", block)

    def _release_large_enough(self, pool: BlockPool, size: int, stream: int) -> bool:
        """Release blocks that are too large to be split, until a request fits; whether it fits:
        ``release_available_cached_blocks``.
        """
        limit = self.settings.max_split_bytes
        if limit == UNLIMITED:
            return False
        needed = max(size, limit)
        large_enough = next(pool.at_least(needed, stream), None)
        if large_enough is not None:
            self._release(large_enough)
            return True
        released = 0
        for block in pool.below(needed, stream):
            if released >= needed or block.size < limit:
                break
            released += block.size
            self._release(block)
        return released >= needed

    def _collect_garbage(self) -> None:
        """Release old segments above the threshold: ``garbage_collect_cached_blocks``."""
        assert self._allowed_bytes is not None
        threshold = int(self.settings.garbage_collection_threshold * self._allowed_bytes)
        to_reclaim = self.reserved_bytes - threshold
        pool = self.large
        whole = [b for b in pool.free_blocks() if not b.is_split and b.expandable is None]
        total_age = sum(pool.num_searches - block.born for block in whole)
        reclaimed, freed = 0, True
        while reclaimed < to_reclaim and freed and whole:
            oldest, freed = total_age / len(whole), False
            for block in list(whole):
                age = pool.num_searches - block.born
                if age >= oldest:
                    freed = True
                    reclaimed += block.size
                    total_age -= age
                    whole.remove(block)
                    self._release(block)

    # Trace ----------------------------------------------------------------------------------------

    def _report(self, action: str, block: Block) -> None:
        if self.trace is not None:
            is_segment = action.startswith("segment")
            size = block.size if is_segment else block.requested
            tag = self._tag if is_segment else block.tag
            self.trace.append(TraceEntry(action, block.address, size, block.stream, tag))

    def _report_action(self, action: str, address: int, num_bytes: int, stream: int) -> None:
        if self.trace is not None:
            self.trace.append(TraceEntry(action, address, num_bytes, stream, self._tag))
