"""The allocations and frees of a step, sent through the caching allocator step after step.

Input: a :class:`Run`, the columns of a step's storages; settings; a device. Output: a
:class:`Reserved`, and the allocator as the last step leaves it. Invariant: what is alive at the end
of a step and belongs to it alone is freed before the next; what lasts keeps its block, so later
steps find the first one's cache. Called by: ``memory``, for an estimate of a CUDA device.
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
    trace: bool = False,
    tags: Any = None,
) -> tuple[Reserved, CachingAllocator]:
    """Run steps until one reserves no more than those before, at most MAX_STEPS.

    Args:
        run: the step.
        settings: of the allocator.
        memory: the device; without a limit, if not given.
        trace: whether the allocator keeps all its actions.
        tags: what each row is for, kept with its block; a sequence.

    Returns:
        What was reserved, and the allocator at the end.
    """
    allocator = CachingAllocator(settings, memory, trace=trace)
    steps = _Steps(run, allocator, tags)
    num_steps, fits, peak = 0, True, -1
    try:
        while num_steps < MAX_STEPS and allocator.peak_reserved_bytes > peak:
            peak = allocator.peak_reserved_bytes
            num_steps += 1
            steps.run_one(is_first=num_steps == 1)
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


class _Steps:
    """Steps that share an allocator."""

    def __init__(self, run: Run, allocator: CachingAllocator, tags: Any) -> None:
        self._allocator, self._tags = allocator, tags
        self._blocks: list[Block | None] = [None] * len(run.num_bytes)
        self._num_bytes = run.num_bytes.tolist()
        self._stream = run.stream.tolist()
        self._used_on = run.used_on
        self._workspaces = dict(run.workspaces)
        alive = run.freed_at >= run.num_events
        self._leftovers = np.flatnonzero(alive & ~run.lasts).tolist()
        lasting = set(np.flatnonzero(alive & run.lasts).tolist())
        self._events = _events(run)
        self._later_events = [
            (event, row)
            for event, row in self._events
            if row not in lasting and ~row not in lasting
        ]

    def run_one(self, *, is_first: bool) -> None:
        """Run a step, and free what is alive at its end and does not last."""
        for event, row in self._events if is_first else self._later_events:
            self._allocate(row) if row >= 0 else self._free(~row)
            if is_first and event in self._workspaces:
                num_bytes = self._workspaces[event]
                self._allocator.allocate(num_bytes, tag=self._tags and "workspace of cuBLAS")
        for row in self._leftovers:
            self._free(row)

    def _allocate(self, row: int) -> None:
        num_bytes = self._num_bytes[row]
        if num_bytes:  # empty tensors have no memory
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
