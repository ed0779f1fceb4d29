"""The queue of a replay's tasks: which can begin, in what order, and in how much memory.

Input: a graph of tasks, and the requested cells. Output: work for threads: single operations,
ranges of fused groups, cells that can be delivered. Invariant: memory in addition to the requested
cells stays below a limit, except for one task that needs more by itself. All methods are called
with the lock of the workers held.

Elements of fused groups are handed out in the order in which they were recorded, from the first
group on: so that generators go on from their positions, and memory is filled in order. Ranges get
smaller towards the end, so that all threads finish at about the same time (Polychronopoulos and
Kuck 1987, "Guided self-scheduling").
"""

from __future__ import annotations

import bisect
from collections import Counter, deque
from typing import NamedTuple

from torchfake._graph.operations import Cell
from torchfake._replay import tile_loop
from torchfake._replay.execute import Storages
from torchfake._replay.task_graph import FusedGroup, SingleOp, Task, TaskGraph
from torchfake._replay.tile_loop import BlockWriter, BufferAssignment, aligned_stop
from torchfake._replay.tiling import DRAW_ALIGNMENT

MAX_SCRATCH_BYTES = 64 * 1024 * 1024
"""The limit of memory in addition to requested cells. A larger cell exists without others."""

MIN_RANGE_ELEMENTS, MAX_RANGE_ELEMENTS = 1 << 22, 1 << 26
"""The fewest and most elements that a thread takes at once. To compute the fewest takes longer than
two jumps of a generator."""


class GroupProgress:
    """A fused group that can begin or has begun, and how far it is."""

    def __init__(self, group: FusedGroup) -> None:
        self.group = group
        self.next = 0  # the first element that no thread has taken
        self.num_unfinished = group.cell_length
        self.assignment: BufferAssignment | None = None  # None until the group has begun

    @property
    def num_untaken(self) -> int:
        return self.group.cell_length - self.next


class TakenRange(NamedTuple):
    """Elements of a fused group that one thread computes."""

    progress: GroupProgress
    start: int
    stop: int


class WorkQueue:
    """The tasks of one replay that can begin, those that wait, and the memory of all."""

    def __init__(
        self,
        task_graph: TaskGraph,
        requested: set[Cell],
        *,
        num_threads: int,
        block_writers: dict[Cell, BlockWriter],
        counts_requested: bool,
    ) -> None:
        tasks, self._first_tasks, self._last_tasks = task_graph
        self._requested = requested
        self._num_threads = num_threads
        self._block_writers = block_writers
        self._counts_requested = counts_requested
        self.storages = Storages()
        self.num_unfinished = len(tasks)
        self._num_uses = Counter(cell for task in tasks for cell in task.cells)
        self._tiled_only = self._find_tiled_only()
        self._num_uses.update(requested - self._tiled_only)  # until they are delivered
        self._num_dependencies = {task: len(task.dependencies) for task in tasks}
        self._dependents: dict[Task, list[Task]] = {}
        for task in tasks:
            for other in task.dependencies:
                self._dependents.setdefault(other, []).append(task)
        self._ready_ops: list[SingleOp] = []  # sorted, like the two lists below
        self._ready_free_ops: list[SingleOp] = []  # these allocate nothing, and may free memory
        self._ready_groups: list[GroupProgress] = []
        self._deliverable: deque[Cell] = deque()
        self._num_running = 0  # ranges and single operations
        self._num_bytes = 0  # bytes that count towards the limit
        for task in tasks:
            if not self._num_dependencies[task]:
                self._enqueue(task)

    def _find_tiled_only(self) -> set[Cell]:
        """Cells that need not exist as a whole: one group makes and uses them, and they are not
        requested, or only block by block.
        """
        return {
            cell
            for cell, task in self._first_tasks.items()
            if self._num_uses[cell] == 1
            and isinstance(task, FusedGroup)
            and (cell not in self._requested or cell in self._block_writers)
        }

    @property
    def num_group_elements(self) -> int:
        """The elements of all fused groups."""
        tasks = self._num_dependencies
        return sum(task.cell_length for task in tasks if isinstance(task, FusedGroup))

    @property
    def is_finished(self) -> bool:
        """Whether all tasks are finished, and all cells delivered."""
        return not self.num_unfinished and not self._deliverable

    def _enqueue(self, task: Task) -> None:
        if isinstance(task, FusedGroup):
            progress = GroupProgress(task)
            bisect.insort(self._ready_groups, progress, key=lambda other: other.group.number)
        elif isinstance(task, SingleOp):
            ready = self._ready_ops if self._bytes_to_allocate(task) else self._ready_free_ops
            bisect.insort(ready, task, key=lambda other: other.number)

    # Tasks that begin.

    def take_for_main(self) -> Cell | SingleOp | list[TakenRange] | None:
        """The next work of the calling thread: a cell to deliver, an operation, ranges of groups;
        None if there is nothing to do until other threads have finished something.
        """
        if self._deliverable:
            return self._deliverable.popleft()
        for over_limit in (False, self._is_idle()):
            op = self._take_op(over_limit)
            if op is not None:
                return op
            ranges = self.take_ranges(over_limit)
            if ranges:
                return ranges
        return None

    def take_ranges(self, over_limit: bool = False) -> list[TakenRange]:
        """The next elements of groups: enough to be worth a turn, and few enough to leave some to
        other threads. With `over_limit`, one group is taken even if its memory exceeds the limit.
        """
        startable = self._startable_groups(over_limit)
        size = sum(progress.num_untaken for progress in startable) // (2 * self._num_threads)
        size = min(max(size, MIN_RANGE_ELEMENTS), MAX_RANGE_ELEMENTS)
        ranges: list[TakenRange] = []
        for progress in startable:
            if size <= 0:
                break
            ranges.append(self._take_range(progress, size))
            size -= ranges[-1].stop - ranges[-1].start
        self._num_running += len(ranges)
        self._ready_groups = [p for p in self._ready_groups if p.num_untaken]
        return ranges

    def _startable_groups(self, over_limit: bool) -> list[GroupProgress]:
        """Groups from the first one on, as many as there is memory for."""
        found: list[GroupProgress] = []
        num_elements, num_bytes, is_full = 0, self._num_bytes, False
        for progress in self._ready_groups:
            has_begun = progress.assignment is not None
            needed = 0 if has_begun else self._bytes_to_allocate(progress.group)
            is_full = is_full or not _fits(num_bytes, needed)
            if needed and is_full:
                continue  # later ones that need no memory may free some
            found.append(progress)
            num_bytes += needed
            num_elements += progress.num_untaken
            if num_elements > 2 * self._num_threads * MAX_RANGE_ELEMENTS:
                break
        return self._ready_groups[:1] if over_limit and not found else found

    def _take_range(self, progress: GroupProgress, size: int) -> TakenRange:
        """About `size` elements: all that are left, if these are not many more."""
        if progress.assignment is None:
            self._num_bytes += self._bytes_to_allocate(progress.group)
            progress.assignment = self._assign_buffers(progress.group)
        start, length = progress.next, progress.group.cell_length
        size = max(size, MIN_RANGE_ELEMENTS // 2, DRAW_ALIGNMENT)
        if length - start > size + MIN_RANGE_ELEMENTS // 2:
            progress.next = aligned_stop(start + size, length)
        else:
            progress.next = length
        return TakenRange(progress, start, progress.next)

    def _assign_buffers(self, group: FusedGroup) -> BufferAssignment:
        tiled_only = group.cells & self._tiled_only
        writers = self._block_writers
        return BufferAssignment(
            {cell: self.storages[cell] for cell in group.cells - tiled_only},
            {cell: writers[cell] for cell in tiled_only if cell in writers},
            tile_loop.block_elements(self._num_threads),
        )

    def _take_op(self, over_limit: bool) -> SingleOp | None:
        """The next operation. Those that allocate nothing come first, as they may free memory that
        all others wait for.
        """
        ready = self._ready_free_ops or self._ready_ops
        if not ready:
            return None
        needed = self._bytes_to_allocate(ready[0])
        if not over_limit and not _fits(self._num_bytes, needed):
            return None
        self._num_bytes += needed
        self._num_running += 1
        return ready.pop(0)

    def _bytes_to_allocate(self, task: Task) -> int:
        """The bytes that count towards the limit from when `task` begins."""
        return sum(
            self._counted_bytes(cell) for cell in task.cells if self._first_tasks[cell] is task
        )

    def _counted_bytes(self, cell: Cell) -> int:
        is_free = cell in self._requested and not self._counts_requested
        return 0 if is_free or cell in self._tiled_only else cell.num_bytes

    def _is_idle(self) -> bool:
        """Whether no memory will be freed before something else begins."""
        return not self._num_running and not self._deliverable

    # Tasks that are finished.

    def finish_range(self, taken: TakenRange, *, was_stopped: bool) -> None:
        progress = taken.progress
        self._num_running -= 1
        progress.num_unfinished -= taken.stop - taken.start
        if not progress.num_unfinished and not was_stopped:
            self._finish(progress.group)

    def finish_op(self, task: SingleOp) -> None:
        self._num_running -= 1
        self._finish(task)

    def _finish(self, task: Task) -> None:
        self.num_unfinished -= 1
        for dependent in self._dependents.pop(task, ()):
            self._num_dependencies[dependent] -= 1
            if not self._num_dependencies[dependent]:
                self._enqueue(dependent)
        for cell in task.cells:
            is_last = self._last_tasks[cell] is task
            if is_last and cell in self._requested and cell not in self._tiled_only:
                self._deliverable.append(cell)
            self.release(cell)

    def release(self, cell: Cell) -> None:
        """Count one use of `cell` less; free its memory after the last."""
        self._num_uses[cell] -= 1
        if not self._num_uses[cell]:
            self.storages.pop(cell, None)
            self._num_bytes -= self._counted_bytes(cell)


def _fits(num_bytes: int, needed: int) -> bool:
    return not needed or not num_bytes or num_bytes + needed <= MAX_SCRATCH_BYTES
