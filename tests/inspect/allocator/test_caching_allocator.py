"""The allocator's documented behaviour, one by one, and what holds whatever is asked of it."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.inspect.allocator.programs import SETTINGS, Program, run_model
from torchfake.inspect.allocator.blocks import Block
from torchfake.inspect.allocator.caching_allocator import CachingAllocator, OutOfMemory
from torchfake.inspect.allocator.device_memory import DeviceMemory
from torchfake.inspect.allocator.settings import MIB, parse_settings
from torchfake.inspect.allocator.sizes import rounded, segment_bytes
from torchfake.inspect.allocator.snapshot import snapshot_of


def allocator(settings: str = "", capacity_mib: int | None = None) -> CachingAllocator:
    memory = DeviceMemory(None if capacity_mib is None else capacity_mib * MIB)
    return CachingAllocator(parse_settings(settings), memory, trace=True)


def actions(found: CachingAllocator) -> list[str]:
    assert found.trace is not None
    return [entry.action for entry in found.trace]


@pytest.mark.parametrize(
    ("num_bytes", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
    ],
)
def test_sizes(num_bytes: int, block: int, segment: int) -> None:
    settings = parse_settings("")
    assert rounded(num_bytes, settings) == block
    assert segment_bytes(block, settings) == segment


def test_sizes_are_rounded_to_divisions_between_powers_of_two() -> None:
    settings = parse_settings("roundup_power2_divisions:4")
    # the example of torch's documentation: 1200 is between 1024 and 2048
    assert rounded(1200 * 1024, settings) == 1280 * 1024
    assert rounded(1200, settings) == 1536  # not more than 512 times the divisions: plain rounding


def test_small_requests_share_a_segment_and_large_ones_another() -> None:
    found = allocator()
    for _ in range(3):
        found.allocate(1000)
    assert found.reserved_bytes == 2 * MIB
    found.allocate(2 * MIB)
    found.allocate(4 * MIB)
    assert found.reserved_bytes == 22 * MIB


def test_a_freed_block_is_cached_and_the_best_fit_is_taken() -> None:
    found = allocator()
    blocks = [found.allocate(n * MIB) for n in (40, 20, 30)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        found.free(block)
    assert (found.allocated_bytes, found.reserved_bytes) == (0, 90 * MIB)
    assert found.allocate(25 * MIB).address == addresses[2]


def test_a_rest_of_up_to_a_mebibyte_is_not_split_off() -> None:
    found = allocator()
    found.free(found.allocate(24 * MIB))
    assert found.allocate(23 * MIB).size == 24 * MIB
    found = allocator()
    found.free(found.allocate(24 * MIB))
    assert found.allocate(23 * MIB - 512).size == 23 * MIB - 512


def test_free_neighbours_are_merged() -> None:
    found = allocator()
    blocks = [found.allocate(6 * MIB) for _ in range(3)]
    assert found.reserved_bytes == 20 * MIB
    for i in (0, 2, 1):
        found.free(blocks[i])
    assert [block.size for block in found.large.free_blocks()] == [20 * MIB]


def test_a_stream_has_its_own_blocks() -> None:
    found = allocator()
    found.free(found.allocate(30 * MIB, stream=1))
    found.allocate(30 * MIB, stream=2)
    assert found.reserved_bytes == 60 * MIB


class Busy(CachingAllocator):
    busy = True

    def streams_finished(self, block: Block) -> bool:
        return not self.busy


def test_a_block_that_another_stream_uses_is_free_when_that_has_finished() -> None:
    found = Busy(trace=True)
    block = found.allocate(30 * MIB)
    found.record_stream(block, 1)
    found.free(block)
    assert found.allocated_bytes == 0
    found.allocate(30 * MIB)
    assert found.reserved_bytes == 60 * MIB
    found.busy = False
    found.allocate(30 * MIB)
    assert found.reserved_bytes == 60 * MIB
    assert actions(found)[2:4] == ["free_requested", "segment_alloc"]


def test_the_use_on_its_own_stream_needs_no_waiting() -> None:
    found = Busy()
    block = found.allocate(30 * MIB, stream=3)
    found.record_stream(block, 3)
    found.free(block)
    found.allocate(30 * MIB, stream=3)
    assert found.reserved_bytes == 30 * MIB


def test_cached_blocks_are_released_before_memory_is_out() -> None:
    found = allocator(capacity_mib=100)
    for _ in range(2):
        found.free(found.allocate(60 * MIB, stream=_))
    assert found.num_retries == 1
    assert found.reserved_bytes == 60 * MIB
    with pytest.raises(OutOfMemory):
        found.allocate(101 * MIB)
    assert actions(found)[-1] == "oom"


def test_a_segment_that_is_in_use_is_not_released() -> None:
    found = allocator(capacity_mib=30)
    found.allocate(2 * MIB)
    with pytest.raises(OutOfMemory):
        found.allocate(20 * MIB)


def test_large_blocks_are_not_split_above_max_split_size() -> None:
    found = allocator("max_split_size_mb:32")
    found.free(found.allocate(64 * MIB))
    found.allocate(16 * MIB)  # does not take it
    assert found.reserved_bytes == 80 * MIB
    assert found.allocate(50 * MIB).size == 64 * MIB  # does, whole
    found = allocator("max_split_size_mb:32")
    found.free(found.allocate(64 * MIB))
    found.allocate(40 * MIB)  # 20 MiB less, or more: does not
    assert found.reserved_bytes == 104 * MIB


def test_old_segments_are_collected_above_the_threshold() -> None:
    settings = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.99"
    found = allocator(settings, capacity_mib=100)
    found.free(found.allocate(60 * MIB))
    found.allocate(62 * MIB, stream=1)
    assert "segment_free" in actions(found)
    assert found.num_retries == 0


def test_expandable_segments_grow_by_pages() -> None:
    found = allocator("expandable_segments:True")
    small = found.allocate(1000)
    assert found.reserved_bytes == 2 * MIB
    blocks = [found.allocate(30 * MIB) for _ in range(3)]
    assert found.reserved_bytes == 2 * MIB + 100 * MIB  # pages of 20 MiB
    assert blocks[1].address == blocks[0].address + 30 * MIB
    for block in (small, *blocks):
        found.free(block)
    found.allocate(90 * MIB)
    assert found.reserved_bytes == 102 * MIB
    assert actions(found).count("segment_map") == 4


def test_pages_of_expandable_segments_are_unmapped_on_release() -> None:
    found = allocator("expandable_segments:True")
    first, second = found.allocate(30 * MIB), found.allocate(30 * MIB)
    found.free(first)
    found.empty_cache()
    assert found.reserved_bytes == 40 * MIB  # the page that the second begins in stays
    found.free(second)
    found.empty_cache()
    assert found.reserved_bytes == 0


PROGRAM = st.builds(
    Program,
    settings=st.sampled_from(SETTINGS),
    capacity_mib=st.sampled_from((700, 3000)),
    seed=st.integers(0, 10**9),
    num_ops=st.integers(1, 120),
)


@given(PROGRAM)
def test_blocks_tile_segments_and_counts_add_up(program: Program) -> None:
    states, found = run_model(program, trace=True)
    assert all(allocated <= reserved for _, reserved, allocated in states)
    assert found.reserved_bytes <= program.capacity_mib * MIB
    snapshot = snapshot_of(found)
    total = allocated = 0
    ends = []
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            assert block["size"] % 512 == 0
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
        states_of = [block["state"] for block in segment["blocks"]]
        pairs = pairwise(states_of)
        assert ("inactive", "inactive") not in pairs
        ends.append((segment["address"], address))
        total += segment["total_size"]
        allocated += segment["allocated_size"]
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    assert (total, allocated) == (found.reserved_bytes, found.allocated_bytes)


@given(PROGRAM)
def test_what_is_freed_and_released_leaves_nothing(program: Program) -> None:
    _, found = run_model(program)
    for block in list(found.active.values()):
        if block.allocated:
            found.free(block)
    found.empty_cache()
    assert (found.reserved_bytes, found.allocated_bytes) == (0, 0)
    assert not found.active


@given(PROGRAM)
def test_the_trace_tells_the_same_story(program: Program) -> None:
    _, found = run_model(program, trace=True)
    assert found.trace is not None
    reserved, live = 0, {}
    for entry in found.trace:
        if entry.action in ("segment_alloc", "segment_map"):
            reserved += entry.num_bytes
        elif entry.action in ("segment_free", "segment_unmap"):
            reserved -= entry.num_bytes
        elif entry.action == "alloc":
            assert entry.address not in live
            live[entry.address] = entry.num_bytes
        elif entry.action == "free_completed":
            assert live.pop(entry.address) == entry.num_bytes
    assert reserved == found.reserved_bytes
    assert live == {block.address: block.requested for block in found.active.values()}
