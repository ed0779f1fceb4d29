"""What can be done at the same time.

Enters: operations in the order they were recorded. Leaves: tasks, each with those it comes after.
Invariant: two tasks that touch the same cell, or of which one draws where the other's draws end,
are in order; all others are free.

Operations that can be done piece by piece are joined to chains, as long as nothing else has touched
their cells. The rest are lone: done whole, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torchfake._graph import Cell, Op
from torchfake._pieces import Step, step_of


class Task:
    """Something to be done, after what it waits for."""

    def __init__(self, op: Op) -> None:
        self.number = op.number
        self.after: set[Task] = set()
        self.cells: set[Cell] = set()

    def ops(self) -> Iterator[Op]:
        raise NotImplementedError


class Lone(Task):
    """One operation."""

    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self.op = op

    def ops(self) -> Iterator[Op]:
        yield self.op


class Chain(Task):
    """Steps on the same elements, in order."""

    def __init__(self, step: Step) -> None:
        super().__init__(step.op)
        self.length = step.length
        self.steps: list[Step] = []
        self.is_open = True  # nobody waits for it yet, so that it can become longer

    def ops(self) -> Iterator[Op]:
        yield from (step.op for step in self.steps)

    def join(self, other: Chain) -> None:
        self.steps = sorted([*self.steps, *other.steps], key=lambda step: step.op.number)
        self.number = min(self.number, other.number)
        self.after |= other.after
        self.cells |= other.cells


def cells_of(op: Op) -> Iterator[Cell]:
    """Those it looks at, and those it makes."""
    yield from (read.contents.cell for read in op.reads())
    yield from (made.cell for made in op.made)


class Schedule(NamedTuple):
    """Tasks, and which of them touch each cell first and last.

    A chain may have begun before a lone task that touches a cell, and touch it after: the order of
    their first operations does not tell.
    """

    tasks: list[Task]  # in the order of their first operations
    first: dict[Cell, Task]
    last: dict[Cell, Task]


def schedule(ops: Iterable[Op]) -> Schedule:
    """What can be done at the same time, of operations in the recorded order."""
    plan = _Plan()
    for op in ops:
        plan.add(op)
    return Schedule(sorted(plan.tasks, key=lambda task: task.number), plan.first, plan.last)


class _Plan:
    def __init__(self) -> None:
        self.tasks: set[Task] = set()
        self.first: dict[Cell, Task] = {}
        self.last: dict[Cell, Task] = {}
        self._drawing: dict[float, Task] = {}  # by the operation's number: lone ones that draw

    def add(self, op: Op) -> None:
        cells = set(cells_of(op))
        before = {self.last[cell] for cell in cells if cell in self.last}
        step = step_of(op)
        if step is None:
            task: Task = Lone(op)
            self.tasks.add(task)
        else:
            task = self._chain(step, before)
        self._wait(task, before - {task})
        if op.draw is not None:
            self._wait_for_draws(task, op)
        task.cells |= cells
        for cell in cells:
            self.first.setdefault(cell, task)
            self.last[cell] = task

    def _chain(self, step: Step, before: set[Task]) -> Chain:
        """The chain of `step`: one of those that touched its cells last, with the others joined to
        it. Nobody waits for those, so that no task comes to wait for itself.
        """
        open_ = [
            t for t in before if isinstance(t, Chain) and t.is_open and t.length == step.length
        ]
        chain = min(open_, key=lambda task: task.number, default=None) or Chain(step)
        self.tasks.add(chain)
        for other in open_:
            if other is not chain:
                self._join(chain, other)
        before.difference_update(open_)
        chain.steps.append(step)
        return chain

    def _join(self, chain: Chain, other: Chain) -> None:
        chain.join(other)
        self.tasks.remove(other)
        for cell in other.cells:
            for of in (self.first, self.last):
                if of[cell] is other:
                    of[cell] = chain

    def _wait(self, task: Task, before: set[Task]) -> None:
        for other in before:
            if isinstance(other, Chain):
                other.is_open = False
            task.after.add(other)

    def _wait_for_draws(self, task: Task, op: Op) -> None:
        """A draw that is not counted says where it has ended when it has been done."""
        waits_for = op.draw.waits_for
        if waits_for is not None:
            task.after.add(self._drawing[waits_for.number])
        if op.draw.taken is None:
            self._drawing[op.number] = task
