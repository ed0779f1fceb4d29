"""Replays the allocations and frees of steps through the caching allocator, step after step.

Input: a :class:`Run` for each step, the columns of its storages; settings; a device. Output: a
:class:`Reserved`, and the allocator after the last step. Invariant: storages that last keep their
blocks from step to step; others that are alive at the end of a step are freed before the next. A
later step finds the blocks that earlier steps have cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from torchfake.inspect.allocator.blocks import Block
from torchfake.inspect.allocator.caching_allocator import CachingAllocator, OutOfMemory
from torchfake.inspect.allocator.device_memory import DeviceMemory
from torchfake.inspect.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings

MAX_STEPS = 4
"""How often the steps are run at most, even if each time a little more is reserved."""

Array = np.ndarray[Any, Any]


class Run(NamedTuple):
    """One step: a row for each storage, in order of allocation."""

    num_bytes: Array  # int64, as requested
    allocated_at: Array  # int64, event
    freed_at: Array  # int64, event; `num_events` if the storage is alive at the end
    kind: Array  # int8: what the storage is for, such as gradients
    is_old: Array  # bool: whether the storage exists before the step
    lasts: Array  # bool: whether a storage alive at the end is kept in the next step
    num_events: int
    stream: Array  # int64: 0 is the default stream
    used_on: dict[int, tuple[int, ...]]  # other streams that use a storage, by row
    workspaces: tuple[tuple[int, int], ...] = ()  # (event, bytes): allocated once, after the event
    kept: tuple[int, ...] = ()  # kinds of storages of earlier steps that stay during this one
    tags: Sequence[Any] | None = None  # a tag for each row, which the row's block gets


@dataclass(frozen=True)
class Reserved:
    """The memory that the caching allocator has reserved in a replay."""

    peak_reserved_bytes: int  # as torch.cuda.max_memory_reserved()
    peak_allocated_bytes: int  # as torch.cuda.max_memory_allocated()
    allocated_at_peak_bytes: int  # allocated when reserved memory first reached its peak
    num_steps: int  # steps that were run
    num_retries: int  # requests for which all cached blocks were released
    fits: bool  # whether the device could serve all requests
    last_reserved_bytes: int = 0  # reserved after the last step, as torch.cuda.memory_reserved()

    @property
    def fragmentation_bytes(self) -> int:
        """Bytes reserved but not allocated when reserved memory first reached its peak."""
        return self.peak_reserved_bytes - self.allocated_at_peak_bytes


def replay(
    runs: Sequence[Run],
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    memory: DeviceMemory | None = None,
    *,
    first: Run | None = None,
    trace: bool = False,
) -> tuple[Reserved, CachingAllocator]:
    """Replay steps, again and again until no more memory is reserved, at most MAX_STEPS times.

    Args:
        runs: the steps, in order; one that occurs several times is the same object.
        first: the first step, if it differs from later ones.
        settings: the settings of the allocator.
        memory: the device; by default one with unlimited memory.
        trace: whether the allocator records all its actions.

    Returns:
        The reserved memory, and the allocator after the last step.
    """
    allocator = CachingAllocator(settings, memory, trace=trace)
    carried: Carried = {}
    each = {id(run): _Steps(run, allocator, carried) for run in runs}
    order = [each[id(run)] for run in runs]
    num_steps, fits, peak = 0, True, -1
    try:
        if first is not None:
            before = _Steps(first, allocator, carried)
            before.run_one()
            before.leave_all()
            num_steps = 1
        while num_steps < MAX_STEPS * len(order) and allocator.peak_reserved_bytes > peak:
            peak = allocator.peak_reserved_bytes
            for steps, following in zip(order, [*order[1:], order[0]], strict=True):
                num_steps += 1
                steps.run_one()
                if following is not steps:
                    steps.leave_all()
    except OutOfMemory:
        fits = False
    found = Reserved(
        allocator.peak_reserved_bytes,
        allocator.peak_allocated_bytes,
        allocator.allocated_at_peak_bytes,
        num_steps,
        allocator.num_retries,
        fits,
        allocator.reserved_bytes,
    )
    return found, allocator


Carried = dict[tuple[int, int], list[Block]]
"""Blocks that a step leaves to the next, by the bytes requested and the kind."""


class _Steps:
    """Replays the steps of one run on an allocator."""

    def __init__(self, run: Run, allocator: CachingAllocator, carried: Carried) -> None:
        self._allocator, self._tags, self._carried = allocator, run.tags, carried
        self._blocks: list[Block | None] = [None] * len(run.num_bytes)
        self._num_bytes = run.num_bytes.tolist()
        self._kind, self._stream = run.kind.tolist(), run.stream.tolist()
        self._used_on, self._kept = run.used_on, run.kept
        self._workspaces = dict(run.workspaces)
        alive = run.freed_at >= run.num_events
        self._lasting = np.flatnonzero(run.is_old | (run.lasts & alive)).tolist()
        self._leftovers = np.flatnonzero(alive & ~run.lasts).tolist()
        self._survivors = np.flatnonzero(alive).tolist()
        self._events = _events(run)

    def run_one(self) -> None:
        """Replay a step. In later steps, storages that last have their blocks already."""
        self._take_over()
        for event, row in self._events:
            self._allocate(row) if row >= 0 else self._free(~row)
            if event in self._workspaces:
                num_bytes = self._workspaces.pop(event)
                self._allocator.allocate(num_bytes, tag=self._tags and "workspace of cuBLAS")
        self._leave(self._leftovers)

    def leave_all(self) -> None:
        """Leave the blocks of all alive storages to the steps of another run."""
        self._leave(self._survivors)

    def _leave(self, rows: list[int]) -> None:
        for row in rows:
            block, self._blocks[row] = self._blocks[row], None
            if block is not None:
                key = self._num_bytes[row], self._kind[row]
                self._carried.setdefault(key, []).append(block)

    def _take_over(self) -> None:
        """Give the storages that exist before the step, or that last, the blocks of their size and
        kind that the last step has left; free the other blocks, but those of kinds that are kept.
        """
        for row in self._lasting:
            left = self._carried.get((self._num_bytes[row], self._kind[row]))
            if left and self._blocks[row] is None:
                self._blocks[row] = left.pop(0)
        for key in [key for key in self._carried if key[1] not in self._kept]:
            for block in self._carried.pop(key):
                self._allocator.free(block)

    def _allocate(self, row: int) -> None:
        num_bytes = self._num_bytes[row]
        if num_bytes and self._blocks[row] is None:  # empty tensors take no memory
            tag = None if self._tags is None else self._tags[row]
            self._blocks[row] = self._allocator.allocate(num_bytes, self._stream[row], tag)

    def _free(self, row: int) -> None:
        block, self._blocks[row] = self._blocks[row], None
        if block is not None:
            for stream in self._used_on.get(row, ()):
                self._allocator.record_stream(block, stream)
            self._allocator.free(block)


def _events(run: Run) -> list[tuple[int, int]]:
    """Events in order, each with the row that is allocated, or ``~row`` for a row that is freed."""
    rows = np.arange(len(run.num_bytes))
    ends = np.flatnonzero(run.freed_at < run.num_events)
    at = np.concatenate([run.allocated_at, run.freed_at[ends]])
    what = np.concatenate([rows, ~ends])
    order = np.argsort(at, kind="stable")
    return list(zip(at[order].tolist(), what[order].tolist(), strict=True))
