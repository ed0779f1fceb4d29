"""Tasks of a replay: operations fused into groups, and the dependencies between them.

Input: operations in the order in which they were recorded. Output: a :class:`TaskGraph` of tasks,
each with the tasks that it depends on. Invariant: two tasks that touch the same cell are ordered;
a task that draws where an uncounted draw ends follows that draw; other tasks are independent.

Operations that can be computed tile by tile (:mod:`torchfake._replay.tiling`) are fused with those
on the same elements, as long as no other task depends on either. The rest are executed whole, one
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torchfake._graph.operations import Cell, Op
from torchfake._replay.tiling import TileableOp, as_tileable


class Task:
    """Work that can begin when all of its dependencies are finished."""

    def __init__(self, op: Op) -> None:
        self.number = op.number  # of its first operation
        self.dependencies: set[Task] = set()
        self.cells: set[Cell] = set()

    def ops(self) -> Iterator[Op]:
        raise NotImplementedError


class SingleOp(Task):
    """One operation, which is executed whole."""

    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self.op = op

    def ops(self) -> Iterator[Op]:
        yield self.op


class FusedGroup(Task):
    """Tileable operations on the same elements, in order."""

    def __init__(self, first: TileableOp) -> None:
        super().__init__(first.op)
        self.cell_length = first.cell_length
        self.tileables: list[TileableOp] = []
        self.can_grow = True  # no task depends on it yet

    def ops(self) -> Iterator[Op]:
        yield from (tileable.op for tileable in self.tileables)

    def merge(self, other: FusedGroup) -> None:
        both = [*self.tileables, *other.tileables]
        self.tileables = sorted(both, key=lambda tileable: tileable.op.number)
        self.number = min(self.number, other.number)
        self.dependencies |= other.dependencies
        self.cells |= other.cells


def cells_of(op: Op) -> list[Cell]:
    """The cells that an operation reads or makes."""
    cells = []
    for read in op.reads():
        cells.append(read.contents.cell)
    for output in op.outputs:
        cells.append(output.cell)
    return cells


class TaskGraph(NamedTuple):
    """Tasks, and which of them touches each cell first and last.

    A fused group may begin before a single operation on one of its cells, and touch the cell again
    after it: the order of the tasks' first operations does not tell which task is the last.
    """

    tasks: list[Task]  # in the order of their first operations
    first_tasks: dict[Cell, Task]
    last_tasks: dict[Cell, Task]


def build_task_graph(ops: Iterable[Op]) -> TaskGraph:
    """The tasks of `ops`, which are in the recorded order."""
    builder = _TaskGraphBuilder()
    for op in ops:
        builder.add(op)
    tasks = sorted(builder.tasks, key=lambda task: task.number)
    return TaskGraph(tasks, builder.first_tasks, builder.last_tasks)


class _TaskGraphBuilder:
    def __init__(self) -> None:
        self.tasks: set[Task] = set()
        self.first_tasks: dict[Cell, Task] = {}
        self.last_tasks: dict[Cell, Task] = {}
        self._uncounted_draws: dict[float, Task] = {}  # by the operation's number

    def add(self, op: Op) -> None:
        cells = set(cells_of(op))
        previous = {self.last_tasks[cell] for cell in cells if cell in self.last_tasks}
        tileable = as_tileable(op)
        if tileable is None:
            task: Task = SingleOp(op)
            self.tasks.add(task)
        else:
            task = self._fuse(tileable, previous)
        self._depend_on(task, previous - {task})
        if op.draw is not None:
            self._depend_on_draws(task, op)
        task.cells |= cells
        for cell in cells:
            self.first_tasks.setdefault(cell, task)
            self.last_tasks[cell] = task

    def _fuse(self, tileable: TileableOp, previous: set[Task]) -> FusedGroup:
        """Add `tileable` to the groups that touched its cells last, merged into one; or to a new
        group. No task depends on these groups, so no task comes to depend on itself.
        """
        growing = [
            task
            for task in previous
            if isinstance(task, FusedGroup)
            and task.can_grow
            and task.cell_length == tileable.cell_length
        ]
        group = min(growing, key=lambda task: task.number, default=None) or FusedGroup(tileable)
        self.tasks.add(group)
        for other in growing:
            if other is not group:
                self._merge(group, other)
        previous.difference_update(growing)
        group.tileables.append(tileable)
        return group

    def _merge(self, group: FusedGroup, other: FusedGroup) -> None:
        group.merge(other)
        self.tasks.remove(other)
        for cell in other.cells:
            for tasks in (self.first_tasks, self.last_tasks):
                if tasks[cell] is other:
                    tasks[cell] = group

    def _depend_on(self, task: Task, previous: set[Task]) -> None:
        for other in previous:
            if isinstance(other, FusedGroup):
                other.can_grow = False
            task.dependencies.add(other)

    def _depend_on_draws(self, task: Task, op: Op) -> None:
        """Make `task` wait for the uncounted draw at whose end `op` draws."""
        waits_for = op.draw.pending_draw
        if waits_for is not None:
            task.dependencies.add(self._uncounted_draws[waits_for.number])
        if op.draw.num_words is None:
            self._uncounted_draws[op.number] = task
