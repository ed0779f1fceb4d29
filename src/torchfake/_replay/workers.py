"""The threads of a replay.

Input: a graph of tasks, and the requested cells. Output: each requested cell, delivered in the
calling thread as soon as no task will write it again. Invariant: however the replay ends, no thread
is left running, and no cell that was not delivered is referenced.

The calling thread executes single operations in order, delivers cells, and otherwise computes
ranges of fused groups, as its helpers do: see :mod:`torchfake._replay.work_queue`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

import torch

from torchfake._core import modes
from torchfake._graph.operations import Cell
from torchfake._random.generator_pool import GeneratorPool, KnownStates
from torchfake._replay import work_queue
from torchfake._replay.execute import execute
from torchfake._replay.task_graph import SingleOp, TaskGraph
from torchfake._replay.tile_loop import BlockWriter, TileBuffers, TileLoop
from torchfake._replay.work_queue import TakenRange, WorkQueue
from torchfake._torch import dispatcher
from torchfake._torch.contexts import holding

DeliverCell = Callable[[Cell, torch.UntypedStorage], None]


class Workers:
    """One replay of the tasks of `task_graph` on `num_threads` threads.

    Args:
        task_graph: the tasks, and which depends on which.
        requested: the cells to deliver.
        deliver: called with each requested cell and its storage, in the calling thread.
        num_threads: the calling one included.
        block_writers: for requested cells that need not exist as a whole: called with their blocks,
            from any thread. Where that is possible, `deliver` is not called.
        counts_requested: whether requested cells count towards the limit of memory.
    """

    def __init__(
        self,
        task_graph: TaskGraph,
        requested: set[Cell],
        deliver: DeliverCell,
        *,
        num_threads: int,
        block_writers: dict[Cell, BlockWriter] | None = None,
        counts_requested: bool = False,
    ) -> None:
        self._deliver = deliver
        self._num_threads = num_threads
        self._queue = WorkQueue(
            task_graph,
            requested,
            num_threads=num_threads,
            block_writers=block_writers or {},
            counts_requested=counts_requested,
        )
        self._known = KnownStates()
        self._lock = threading.Lock()  # protects the queue
        self._main_runs = threading.Lock()  # held as long as the calling thread runs tasks
        self._wakeups = [SimpleQueue[None]() for _ in range(num_threads)]
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run all tasks.

        Raises:
            ReplayError: naming the operation that failed, in any of the threads.
        """
        threads = [
            threading.Thread(target=self._run_helper, args=(wakeup,), name="torchfake", daemon=True)
            for wakeup in self._wakeups[1 : self._num_helpers() + 1]
        ]
        try:
            with holding(self._main_runs), dispatcher.as_eager():
                with modes.starting_plain_threads():
                    for thread in threads:
                        thread.start()
                self._run_main()
        finally:
            self._wake_all()
            _join_all(threads)
        if self._error is not None:
            raise self._error

    def _num_helpers(self) -> int:
        worth = self._queue.num_group_elements // work_queue.MIN_RANGE_ELEMENTS + 1
        return max(0, min(self._num_threads, worth) - 1)

    # KeyboardInterrupt may be raised in the calling thread between any two bytecodes. So whatever
    # threads share is implemented in C (Lock, SimpleQueue), and the helpers are stopped by the
    # release of ``self._main_runs``, which happens wherever the calling thread was interrupted.

    @property
    def _is_stopped(self) -> bool:
        return self._error is not None or not self._main_runs.locked()

    def _wake_all(self) -> None:
        """Wake the threads that wait for work."""
        for wakeup in self._wakeups:
            wakeup.put(None)

    def _run_helper(self, wakeup: SimpleQueue[None]) -> None:
        generators, buffers = GeneratorPool(self._known), TileBuffers()
        try:
            with dispatcher.as_eager():
                while not self._is_stopped and self._queue.num_unfinished:
                    with holding(self._lock):
                        ranges = self._queue.take_ranges()
                    if ranges:
                        self._compute(ranges, generators, buffers)
                    else:
                        _wait(wakeup)
        except BaseException as error:  # raised again in the calling thread
            self._error = self._error or error
        self._wake_all()

    def _run_main(self) -> None:
        generators, buffers = GeneratorPool(self._known), TileBuffers()
        while self._error is None and not self._queue.is_finished:
            with holding(self._lock):
                work = self._queue.take_for_main()
            if work is None:
                _wait(self._wakeups[0])
            elif isinstance(work, Cell):
                self._deliver(work, self._queue.storages[work])
                with holding(self._lock):
                    self._queue.release(work)
                self._wake_all()
            elif isinstance(work, SingleOp):
                execute(work.op, self._queue.storages, generators)
                with holding(self._lock):
                    self._queue.finish_op(work)
                self._wake_all()
            else:
                self._compute(work, generators, buffers)

    def _compute(
        self, ranges: list[TakenRange], generators: GeneratorPool, buffers: TileBuffers
    ) -> None:
        for taken in ranges:
            progress, start, stop = taken
            assert progress.assignment is not None
            loop = TileLoop(progress.group.tileables, progress.assignment, generators, buffers)
            loop.run(start, stop, lambda: self._is_stopped)
            generators.publish_position()
            with holding(self._lock):
                self._queue.finish_range(taken, was_stopped=self._is_stopped)
            self._wake_all()


def _wait(wakeup: SimpleQueue[None]) -> None:
    """Wait until woken; or for a second, in case the thread that would wake this one has ended."""
    with contextlib.suppress(Empty):
        wakeup.get(timeout=1.0)
        while True:  # the caller looks at the queue after this: earlier wake-ups are served too
            wakeup.get_nowait()


def _join_all(threads: list[threading.Thread]) -> None:
    """Wait until all threads have ended; a Ctrl-C that arrives meanwhile is raised after that."""
    interrupt = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt as again:
                interrupt = again
    if interrupt is not None:
        raise interrupt
