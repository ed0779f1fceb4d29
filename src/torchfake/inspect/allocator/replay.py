"""The allocations and frees of a step, sent through the caching allocator step after step.

Input: a :class:`Run`, the columns of a step's storages; settings; a device. Output: a
:class:`Reserved`, and the allocator as the last step leaves it. Invariant: what is alive at the end
of a step and not there before the next is freed; what lasts keeps its block, so later steps find
the first one's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from torchfake.inspect.allocator.blocks import Block
from torchfake.inspect.allocator.caching_allocator import CachingAllocator, OutOfMemory
from torchfake.inspect.allocator.device_memory import DeviceMemory
from torchfake.inspect.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings

MAX_STEPS = 4
"""Steps after which no more are run, though each may reserve a little more than the last."""

Array = np.ndarray[Any, Any]


class Run(NamedTuple):
    """One step: a row for each storage, in order of allocation."""

    num_bytes: Array  # int64, as requested
    allocated_at: Array  # int64, event
    freed_at: Array  # int64, event; `num_events` if it is alive at the end
    kind: Array  # int8: what it is for, such as gradients
    is_old: Array  # bool: it is there before the step
    lasts: Array  # bool: if alive at the end, it is there in the next step too
    num_events: int
    stream: Array  # int64: 0 is the default one
    used_on: dict[int, tuple[int, ...]]  # other streams that use a row, by row
    workspaces: tuple[tuple[int, int], ...] = ()  # (event, bytes): asked for once, after that event


@dataclass(frozen=True)
class Reserved:
    """What the caching allocator holds of the device in some steps."""

    peak_reserved_bytes: int  # as torch.cuda.max_memory_reserved()
    peak_allocated_bytes: int  # as torch.cuda.max_memory_allocated()
    allocated_at_peak_bytes: int  # when the most was reserved for the first time
    num_steps: int  # that were run
    num_retries: int  # requests for which all that was cached had to be released
    fits: bool  # there was no request that the device could not serve

    @property
    def fragmentation_bytes(self) -> int:
        """What was reserved and not allocated when the most was reserved for the first time."""
        return self.peak_reserved_bytes - self.allocated_at_peak_bytes


def replay(
    run: Run,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    memory: DeviceMemory | None = None,
    *,
    first: Run | None = None,
    trace: bool = False,
    tags: Any = None,
) -> tuple[Reserved, CachingAllocator]:
    """Run steps until one reserves no more than those before, at most MAX_STEPS.

    Args:
        run: the step.
        first: the step before it, if that is another.
        settings: of the allocator.
        memory: the device; without a limit, if not given.
        trace: whether the allocator keeps all its actions.
        tags: what each row is for, kept with its block; a sequence.

    Returns:
        What was reserved, and the allocator at the end.
    """
    allocator = CachingAllocator(settings, memory, trace=trace)
    carried: Carried = {}
    steps = _Steps(run, allocator, tags, carried)
    num_steps, fits, peak = 0, True, -1
    try:
        if first is not None:
            before = _Steps(first, allocator, None, carried)
            before.run_one()
            before.leave_all()
            num_steps = 1
        while num_steps < MAX_STEPS and allocator.peak_reserved_bytes > peak:
            peak = allocator.peak_reserved_bytes
            num_steps += 1
            steps.run_one()
    except OutOfMemory:
        fits = False
    found = Reserved(
        allocator.peak_reserved_bytes,
        allocator.peak_allocated_bytes,
        allocator.allocated_at_peak_bytes,
        num_steps,
        allocator.num_retries,
        fits,
    )
    return found, allocator


Carried = dict[tuple[int, int], list[Block]]
"""Blocks that a step leaves behind, by the bytes requested and the kind."""


class _Steps:
    """Steps that share an allocator."""

    def __init__(self, run: Run, allocator: CachingAllocator, tags: Any, carried: Carried) -> None:
        self._allocator, self._tags, self._carried = allocator, tags, carried
        self._blocks: list[Block | None] = [None] * len(run.num_bytes)
        self._num_bytes = run.num_bytes.tolist()
        self._kind, self._stream = run.kind.tolist(), run.stream.tolist()
        self._used_on = run.used_on
        self._workspaces = dict(run.workspaces)
        alive = run.freed_at >= run.num_events
        self._old = np.flatnonzero(run.is_old).tolist()
        self._leftovers = np.flatnonzero(alive & ~run.lasts).tolist()
        self._survivors = np.flatnonzero(alive).tolist()
        self._events = _events(run)

    def run_one(self) -> None:
        """Run a step. What lasts has its block already, if it is not the first."""
        self._take_over()
        for event, row in self._events:
            self._allocate(row) if row >= 0 else self._free(~row)
            if event in self._workspaces:
                num_bytes = self._workspaces.pop(event)
                self._allocator.allocate(num_bytes, tag=self._tags and "workspace of cuBLAS")
        self._leave(self._leftovers)

    def leave_all(self) -> None:
        """Leave all that is alive behind, for steps of other rows."""
        self._leave(self._survivors)

    def _leave(self, rows: list[int]) -> None:
        for row in rows:
            block, self._blocks[row] = self._blocks[row], None
            if block is not None:
                key = self._num_bytes[row], self._kind[row]
                self._carried.setdefault(key, []).append(block)

    def _take_over(self) -> None:
        """Give what is there before the step the blocks of its size and kind that were left behind,
        such as gradients; free the others.
        """
        for row in self._old:
            left = self._carried.get((self._num_bytes[row], self._kind[row]))
            if left and self._blocks[row] is None:
                self._blocks[row] = left.pop(0)
        for blocks in self._carried.values():
            for block in blocks:
                self._allocator.free(block)
        self._carried.clear()

    def _allocate(self, row: int) -> None:
        num_bytes = self._num_bytes[row]
        if num_bytes and self._blocks[row] is None:  # empty tensors have no memory
            tag = None if self._tags is None else self._tags[row]
            self._blocks[row] = self._allocator.allocate(num_bytes, self._stream[row], tag)

    def _free(self, row: int) -> None:
        block, self._blocks[row] = self._blocks[row], None
        if block is not None:
            for stream in self._used_on.get(row, ()):
                self._allocator.record_stream(block, stream)
            self._allocator.free(block)


def _events(run: Run) -> list[tuple[int, int]]:
    """Events in order, each with the row that is allocated, or the complement of the row freed."""
    rows = np.arange(len(run.num_bytes))
    ends = np.flatnonzero(run.freed_at < run.num_events)
    at = np.concatenate([run.allocated_at, run.freed_at[ends]])
    what = np.concatenate([rows, ~ends])
    order = np.argsort(at, kind="stable")
    return list(zip(at[order].tolist(), what[order].tolist(), strict=True))
