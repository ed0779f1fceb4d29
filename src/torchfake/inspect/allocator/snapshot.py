"""An allocator's state and history in the format of torch's memory snapshots.

Input: an allocator that has recorded its trace. Output: a dict as ``torch.cuda.memory._snapshot()``
returns it, of plain values, which can be pickled. Invariant: the sizes of a segment's blocks add up
to the segment's size.

https://pytorch.org/memory_viz and ``torch.cuda._memory_viz`` read the format; in torch,
``DeviceCachingAllocator::snapshot`` and torch/csrc/cuda/memory_snapshot.cpp write it. There is no
clock: an action's time is its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchfake.inspect.allocator.blocks import Block
from torchfake.inspect.allocator.caching_allocator import CachingAllocator, TraceEntry
from torchfake.inspect.allocator.settings import MIB, UNLIMITED, AllocatorSettings

Frame = dict[str, Any]
"""A stack frame: ``filename``, ``line``, and ``name`` of the function."""


def snapshot_of(allocator: CachingAllocator, device_index: int = 0) -> dict[str, Any]:
    """The snapshot of an allocator; a block's tag is a list of frames, innermost first, or text."""
    heads = sorted(_segment_heads(allocator), key=lambda block: block.address)
    trace = allocator.trace or []
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device_index + 1)]
    traces[device_index] = [_entry(number, entry) for number, entry in enumerate(trace)]
    return {
        "segments": [_segment(head, device_index) for head in heads],
        "device_traces": traces,
        "allocator_settings": _settings(allocator.settings),
        "external_annotations": [],
    }


def _segment_heads(allocator: CachingAllocator) -> Iterator[Block]:
    """The first block of each segment, or of each mapped range of an expandable segment."""
    cached = (*allocator.small.free_blocks(), *allocator.large.free_blocks())
    for block in (*cached, *allocator.active.values()):
        if block.previous is None or not block.previous.mapped:
            yield block


def _segment(head: Block, device_index: int) -> dict[str, Any]:
    blocks = list(_from(head))
    active = [block for block in blocks if not block.is_free]
    return {
        "device": device_index,
        "address": head.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in blocks if block.allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": head.expandable is not None,
        "frames": [],
        "blocks": [_block(block) for block in blocks],
    }


def _from(head: Block) -> Iterator[Block]:
    block: Block | None = head
    while block is not None and block.mapped:
        yield block
        block = block.next


def _block(block: Block) -> dict[str, Any]:
    state = "active_allocated" if block.allocated else "active_pending_free"
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": 0 if block.is_free else block.requested,
        "state": "inactive" if block.is_free else state,
        "frames": frames_of(block.tag),
    }


def _entry(number: int, entry: TraceEntry) -> dict[str, Any]:
    return {
        "action": entry.action,
        "device_free" if entry.action == "oom" else "addr": entry.address,
        "size": entry.num_bytes,
        "stream": entry.stream,
        "time_us": number,
        "frames": frames_of(entry.tag),
    }


def frames_of(tag: Any) -> list[Frame]:
    """The frames of a block with this tag."""
    if tag is None:
        return []
    return [{"filename": "", "line": 0, "name": tag}] if isinstance(tag, str) else tag


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    limit = settings.max_split_bytes
    divisions = enumerate(settings.roundup_power2_divisions)
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.text,
        "expandable_segments": settings.expandable_segments,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "max_split_size": -1 if limit == UNLIMITED else limit // MIB,
        "roundup_power2_divisions": {str(1 << i): number for i, number in divisions},
    }
