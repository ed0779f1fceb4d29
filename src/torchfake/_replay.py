"""Recorded contents, made real.

Enters: contents that are wanted. Leaves: real storages that hold them. Invariant: what is made here
is the replay's own until it is handed over; nothing that exists already is written. Draws are from
generators of the replay's own.

What is large is done by :mod:`torchfake._workers`, on all cores; what is small, and what is to be
kept, in the recorded order: there each operation finds what it read, since whatever overwrote it
came later.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch

from torchfake import _private
from torchfake._chains import Sink
from torchfake._execute import Storages, execute
from torchfake._graph import Cell, Contents, Deferred, Op, history
from torchfake._memory import new_storage, view_of
from torchfake._metadata import Metadata
from torchfake._narrow import narrowed
from torchfake._positions import Generators, Known
from torchfake._schedule import cells_of, schedule
from torchfake._workers import Workers

Ready = Callable[[Contents, torch.UntypedStorage], None]

MAX_KEPT_BYTES = 1024 * 1024
"""Values up to this size are kept once they were read, and those they were computed from: a
constructor that reads them in a loop would have all of them computed again each time."""

SMALL_BYTES = 256 * 1024
"""Where no cell is larger, planning takes longer than doing."""


def replay(
    wanted: Iterable[Contents],
    ready: Ready,
    *,
    keep: bool = False,
    keep_small: bool = False,
    num_threads: int | None = None,
    sinks: Mapping[Contents, Sink] | None = None,
) -> None:
    """Make the contents `wanted`, each the last of its cell, and hand each over as soon as it is
    there.

    Args:
        wanted: what to make.
        ready: called with each and its storage, in this thread.
        keep: keep all results on the way, for later replays.
        keep_small: keep, of the small cells, what they hold in the end.
        num_threads: of how many threads to make use; None: ``torch.get_num_threads()``.
        sinks: of those that are not needed as a whole, what takes them piece by piece, from any
            thread; where that is possible `ready` is not called. With sinks, memory of what is
            wanted is bounded as all other is.

    Raises:
        ReplayError: naming the operation that cannot be done, or failed.
    """
    wanted = list(wanted)
    for contents in wanted:
        if contents.op is None:  # memory that nobody has written
            with _private.as_eager():
                ready(contents, new_storage(contents.cell.num_bytes, contents.cell.device))
    wanted = [contents for contents in wanted if contents.op is not None]
    ops = history(contents.op for contents in wanted)
    is_small = all(cell.num_bytes <= SMALL_BYTES for op in ops for cell in cells_of(op))
    if keep or keep_small or (is_small and sinks is None):
        with _private.as_eager():
            _InOrder(ops, keep, keep_small).run(wanted, ready)
        return
    by_cell = {contents.cell: contents for contents in wanted}
    with _private.as_eager():
        plan = schedule(narrowed(ops, by_cell))
    Workers(
        plan,
        set(by_cell),
        lambda cell, storage: ready(by_cell[cell], storage),
        num_threads=num_threads or torch.get_num_threads(),
        sinks={contents.cell: sink for contents, sink in (sinks or {}).items()},
        counts_wanted=sinks is not None,
    ).run()


def check_threads(threads: int | None) -> None:
    """Refuse what is no number of threads.

    Raises:
        ValueError: saying what to give.
    """
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ValueError(f"threads is {threads!r}: give how many, at least 1, or None for torch's")


def value_of(deferred: Deferred, record: Metadata) -> torch.Tensor:
    """The real tensor that a fake of `record` on that storage stands for; not to be written."""
    if deferred.real is None:
        made: list[torch.UntypedStorage] = []
        keep = deferred.contents.cell.num_bytes <= MAX_KEPT_BYTES
        replay([deferred.contents], lambda _, storage: made.append(storage), keep_small=keep)
    else:
        made = [deferred.real]
    with _private.as_eager():
        return view_of(made[0], record)


_kept: weakref.WeakSet[Op] = weakref.WeakSet()


def forget_kept() -> None:
    """Let go of the results that were kept by ``replay(keep=True)``."""
    for op in list(_kept):
        op.kept = None
    _kept.clear()


def finish_draws(op: Op) -> None:
    """Do what it takes to know where the draws of `op` end."""
    with _private.as_eager():
        _InOrder(history([op])).run([], lambda *_: None)


class _InOrder:
    """One replay in the recorded order: the storages there are now, and how often each will still
    be asked for.
    """

    def __init__(self, ops: list[Op], keep: bool = False, keep_small: bool = False) -> None:
        self._ops = ops
        self._storages = Storages()
        self._uses = Counter(cell for op in ops for cell in cells_of(op))
        self._keep = keep
        self._last = {cell: op for op in ops for cell in op.results()} if keep_small else {}
        self._generators = Generators(Known())

    def run(self, wanted: list[Contents], ready: Ready) -> None:
        waiting: dict[Op | None, list[Contents]] = {}
        for contents in wanted:
            waiting.setdefault(contents.op, []).append(contents)
        for op in self._ops:
            self._do(op)
            for contents in waiting.get(op, ()):
                ready(contents, self._storages.of(contents.cell))
            self._release(op)

    def _do(self, op: Op) -> None:
        was_kept = op.kept is not None
        execute(op, self._storages, self._generators)
        if self._keep and not was_kept:
            op.kept = {cell: self._storages.of(cell).clone() for cell in op.results()}
            _kept.add(op)

    def _release(self, op: Op) -> None:
        """Let go of what is not asked for after `op`."""
        for cell in cells_of(op):
            self._uses[cell] -= 1
            if not self._uses[cell]:
                self._keep_last(cell, self._storages.pop(cell))

    def _keep_last(self, cell: Cell, storage: torch.UntypedStorage | None) -> None:
        """Keep what `cell` holds in the end, if it is small, instead of what it held before."""
        op = self._last.get(cell)
        if op is None or storage is None or storage.nbytes() > MAX_KEPT_BYTES:
            return
        if [*op.results()] == [cell] and op.kept is None:
            for read in op.reads():
                if read.contents.cell is cell and read.contents.op is not None:
                    read.contents.op.kept = None
            op.kept = {cell: storage}
