"""Tasks, done on several cores and in bounded memory.

Enters: tasks, and the cells that are wanted. Leaves: each wanted cell, handed over in the calling
thread as soon as nothing will write it again. Invariant: however it ends, no thread is left, and
what has not been handed over is nobody's.

The calling thread does the lone tasks in order, hands over, and is one of the workers in between.
Elements of chains are given out from the front of one long line, in the order they were recorded:
so that a generator goes on where it stands, and memory is filled in order. Portions get smaller
towards the end, for all threads to finish at the same time (Polychronopoulos and Kuck 1987, "Guided
self-scheduling").
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch

from torchfake import _chains, _private
from torchfake._chains import Buffers, Layout, Section, Sink, aligned_stop
from torchfake._execute import Storages, execute
from torchfake._graph import Cell
from torchfake._pieces import ALIGNED
from torchfake._positions import Generators, Known
from torchfake._schedule import Chain, Lone, Schedule, Task

MAX_SCRATCH_BYTES = 64 * 1024 * 1024
"""Memory beside what is wanted; where one cell is larger, it is there alone."""

MIN_PORTION, MAX_PORTION = 1 << 22, 1 << 26  # elements; the least takes longer than two jumps

HandOver = Callable[[Cell, torch.UntypedStorage], None]


class Portion(NamedTuple):
    """Elements of a chain that one thread does."""

    chain: _Progress
    start: int
    stop: int


class _Progress:
    """How far a chain is."""

    def __init__(self, task: Chain) -> None:
        self.task = task
        self.next = 0  # the first element that nobody does
        self.left = task.length  # elements that are not done
        self.layout: Layout | None = None  # from when it was begun

    @property
    def is_given_out(self) -> bool:
        return self.next == self.task.length


class Workers:
    """One replay of `tasks` on `num_threads` threads."""

    def __init__(
        self,
        schedule: Schedule,
        wanted: set[Cell],
        hand_over: HandOver,
        *,
        num_threads: int,
        sinks: dict[Cell, Sink] | None = None,
        counts_wanted: bool = False,
    ) -> None:
        self._wanted = wanted
        self._hand_over = hand_over
        self._sinks = sinks or {}
        self._counts_wanted = counts_wanted
        self._num_threads = num_threads
        self._storages = Storages()
        self._known = Known()
        self._lock = threading.Lock()
        self._leading = threading.Lock()  # held as long as the calling thread is at it
        self._bells = [SimpleQueue[None]() for _ in range(num_threads)]
        self._error: BaseException | None = None
        self._prepare(schedule)

    def _prepare(self, schedule: Schedule) -> None:
        tasks, self._first, self._last = schedule
        self._num_left = len(tasks)
        touching = Counter(cell for task in tasks for cell in task.cells)
        self._inner = {
            cell
            for cell, task in self._first.items()
            if touching[cell] == 1
            and isinstance(task, Chain)
            and (cell not in self._wanted or cell in self._sinks)
        }  # nobody needs these as a whole
        self._uses = touching
        self._uses.update(self._wanted - self._inner)  # until they are handed over
        self._waits = {task: len(task.after) for task in tasks}
        self._followers: dict[Task, list[Task]] = {}
        for task in tasks:
            for other in task.after:
                self._followers.setdefault(other, []).append(task)
        self._lone: list[Lone] = []  # that can be done now, in order
        self._freeing: list[Lone] = []  # the same that need no memory, and may let go of some
        self._line: list[_Progress] = []  # of chains that can be done now, in order
        self._done: deque[Cell] = deque()  # to be handed over
        self._num_running = 0  # portions and lone tasks
        self._bytes = 0  # that count towards the limit
        for task in tasks:
            if not self._waits[task]:
                self._line_up(task)

    def run(self) -> None:
        """Do all of it.

        Raises:
            ReplayError: of the operation that failed, from whichever thread.
        """
        threads = [
            threading.Thread(target=self._help, args=(bell,), name="torchfake", daemon=True)
            for bell in self._bells[1 : self._num_helpers() + 1]
        ]
        try:
            with self._leading, _private.as_eager():
                for thread in threads:
                    thread.start()
                self._lead()
        finally:
            self._ring()
            _wait_for(threads)
        if self._error is not None:
            raise self._error

    def _num_helpers(self) -> int:
        work = sum(task.length for task in self._waits if isinstance(task, Chain))
        return max(0, min(self._num_threads, work // MIN_PORTION + 1) - 1)

    # The threads. Ctrl-C may strike the calling one between any two steps of Python. What is used
    # across threads is therefore made in C (Lock, SimpleQueue), and leaving ``with self._leading``
    # is what stops the others, whatever it was that did not happen any more.

    @property
    def _is_stopped(self) -> bool:
        return self._error is not None or not self._leading.locked()

    def _ring(self) -> None:
        """Wake those that wait for something to do."""
        for bell in self._bells:
            bell.put(None)

    def _help(self, bell: SimpleQueue[None]) -> None:
        generators, buffers = Generators(self._known), Buffers()
        try:
            with _private.as_eager():
                while not self._is_stopped and self._num_left:
                    with self._lock:
                        portions = self._portions()
                    if portions:
                        self._do(portions, generators, buffers)
                    else:
                        _wait(bell)
        except BaseException as error:  # to be raised where somebody sees it
            self._error = self._error or error
        self._ring()

    def _lead(self) -> None:
        generators, buffers = Generators(self._known), Buffers()
        while self._error is None and (self._num_left or self._done):
            with self._lock:
                work = self._next_work()
            if work is None:
                _wait(self._bells[0])
            elif isinstance(work, Cell):
                self._hand_over(work, self._storages.of(work))
                self._finish_handing_over(work)
            elif isinstance(work, Lone):
                execute(work.op, self._storages, generators)
                self._finish_lone(work)
            else:
                self._do(work, generators, buffers)

    def _next_work(self) -> Cell | Lone | list[Portion] | None:
        """What the calling thread does next, if there is something."""
        if self._done:
            return self._done.popleft()
        for anyway in (False, self._is_idle()):
            lone = self._next_lone(anyway)
            if lone is not None:
                return self._begin_lone(lone)
            portions = self._portions(anyway)
            if portions:
                return portions
        return None

    def _do(self, portions: list[Portion], generators: Generators, buffers: Buffers) -> None:
        for chain, start, stop in portions:
            assert chain.layout is not None
            section = Section(chain.task.steps, chain.layout, generators, buffers)
            section.run(start, stop, lambda: self._is_stopped)
            generators.remember()
            self._finish_portion(chain, stop - start)

    # What is begun. All of this with the lock held.

    def _line_up(self, task: Task) -> None:
        if isinstance(task, Chain):
            bisect.insort(self._line, _Progress(task), key=lambda chain: chain.task.number)
        elif isinstance(task, Lone):
            ready = self._lone if self._needed(task) else self._freeing
            bisect.insort(ready, task, key=lambda lone: lone.number)

    def _portions(self, anyway: bool = False) -> list[Portion]:
        """The next elements in line: more than a few, and less than would keep others waiting. With
        `anyway`, of one chain even if there is no memory for it.
        """
        in_reach = self._in_reach(anyway)
        size = sum(chain.task.length - chain.next for chain in in_reach) // (2 * self._num_threads)
        size = min(max(size, MIN_PORTION), MAX_PORTION)
        portions: list[Portion] = []
        for chain in in_reach:
            if size <= 0:
                break
            portions.append(self._portion(chain, size))
            size -= portions[-1].stop - portions[-1].start
        self._num_running += len(portions)
        self._line = [chain for chain in self._line if not chain.is_given_out]
        return portions

    def _in_reach(self, anyway: bool) -> list[_Progress]:
        """Chains from the front of the line, as many as there is memory for."""
        found: list[_Progress] = []
        num_elements, num_bytes, is_full = 0, self._bytes, False
        for chain in self._line:
            needed = 0 if chain.layout is not None else self._needed(chain.task)
            is_full = is_full or not _fits(num_bytes, needed)
            if needed and is_full:
                continue  # those that need no more may let go of some
            found.append(chain)
            num_bytes += needed
            num_elements += chain.task.length - chain.next
            if num_elements > 2 * self._num_threads * MAX_PORTION:
                break
        return self._line[:1] if anyway and not found else found

    def _portion(self, chain: _Progress, size: int) -> Portion:
        if chain.layout is None:
            self._bytes += self._needed(chain.task)
            chain.layout = self._layout(chain.task)
        start, length = chain.next, chain.task.length
        size = max(size, MIN_PORTION // 2, ALIGNED)
        if length - start > size + MIN_PORTION // 2:
            chain.next = aligned_stop(start + size, length)
        else:
            chain.next = length
        return Portion(chain, start, chain.next)

    def _layout(self, task: Chain) -> Layout:
        inner = task.cells & self._inner
        sinks = {cell: self._sinks[cell] for cell in inner if cell in self._sinks}
        whole = {cell: self._storages.of(cell) for cell in task.cells - inner}
        return Layout(whole, sinks, _chains.block_of(self._num_threads))

    def _next_lone(self, anyway: bool) -> Lone | None:
        """What frees memory goes first: all else may be waiting for that."""
        if self._freeing:
            return self._freeing.pop(0)
        if self._lone and (anyway or _fits(self._bytes, self._needed(self._lone[0]))):
            return self._lone.pop(0)
        return None

    def _begin_lone(self, task: Lone) -> Lone:
        self._bytes += self._needed(task)
        self._num_running += 1
        return task

    def _needed(self, task: Task) -> int:
        """The bytes that are there from when `task` begins, and count."""
        return sum(self._cost(cell) for cell in task.cells if self._first[cell] is task)

    def _cost(self, cell: Cell) -> int:
        is_free = cell in self._wanted and not self._counts_wanted
        return 0 if is_free or cell in self._inner else cell.num_bytes

    def _is_idle(self) -> bool:
        """Whether nothing will be let go unless something is begun."""
        return not self._num_running and not self._done

    # What is done.

    def _finish_portion(self, chain: _Progress, num_elements: int) -> None:
        with self._lock:
            self._num_running -= 1
            chain.left -= num_elements
            if not chain.left and not self._is_stopped:
                self._end(chain.task)
        self._ring()

    def _finish_lone(self, task: Lone) -> None:
        with self._lock:
            self._num_running -= 1
            self._end(task)
        self._ring()

    def _end(self, task: Task) -> None:
        self._num_left -= 1
        for follower in self._followers.pop(task, ()):
            self._waits[follower] -= 1
            if not self._waits[follower]:
                self._line_up(follower)
        for cell in task.cells:
            if cell in self._wanted and cell not in self._inner and self._last[cell] is task:
                self._done.append(cell)
            self._let_go(cell)

    def _finish_handing_over(self, cell: Cell) -> None:
        with self._lock:
            self._let_go(cell)
        self._ring()

    def _let_go(self, cell: Cell) -> None:
        self._uses[cell] -= 1
        if not self._uses[cell]:
            self._storages.pop(cell)
            self._bytes -= self._cost(cell)


def _wait(bell: SimpleQueue[None]) -> None:
    """Until it was rung since the last time; or a while, should the one who rings be gone."""
    with contextlib.suppress(Empty):
        bell.get(timeout=1.0)
        while True:  # whatever was rung for by now is seen when we look
            bell.get_nowait()


def _wait_for(threads: list[threading.Thread]) -> None:
    """Until all have ended, which they soon do; another Ctrl-C is put off until then."""
    interrupt = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt as again:
                interrupt = again
    if interrupt is not None:
        raise interrupt


def _fits(there: int, needed: int) -> bool:
    return not needed or not there or there + needed <= MAX_SCRATCH_BYTES
