"""The entry of a replay: computes recorded contents into real storages.

Input: contents that are requested. Output: a real storage for each, delivered by a callback.
Invariant: a storage belongs to the replay alone until it is delivered, and no storage that existed
before is written; draws come from the replay's own generators.

Large replays go through the whole pipeline: demand analysis and slicing, then scheduling, then
:mod:`torchfake._replay.workers` on all cores. Small ones, and those whose intermediate results are
cached, execute all operations one after the other in the recorded order. Each operation reads the
values that it read when recorded, since operations that overwrite these come later. Threads may
replay at the same time: cached results are dropped only while a single replay is under way.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

import torch

from torchfake._core.memory import view_of
from torchfake._core.metadata import Metadata
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import Cell, Contents, Op, dependencies
from torchfake._random.generator_pool import GeneratorPool, KnownStates
from torchfake._replay.execute import Storages, execute
from torchfake._replay.slicing import slice_to_demand
from torchfake._replay.task_graph import build_task_graph, cells_of
from torchfake._replay.tile_loop import BlockWriter
from torchfake._replay.workers import Workers
from torchfake._torch import dispatcher, numerics
from torchfake._torch.contexts import Restoring, holding, shared

Deliver = Callable[[Contents, torch.UntypedStorage], None]

MAX_CACHED_BYTES = 1024 * 1024
"""Values up to this size are cached when they are read, together with the values that they were
computed from: otherwise a constructor that reads in a loop would replay in each iteration."""

MAX_SEQUENTIAL_BYTES = 256 * 1024
"""If no cell is larger than this, scheduling takes longer than execution."""


def replay(
    requested: Iterable[Contents],
    deliver: Deliver,
    *,
    cache_all: bool = False,
    cache_small: bool = False,
    num_threads: int | None = None,
    block_writers: Mapping[Contents, BlockWriter] | None = None,
) -> None:
    """Compute the contents `requested`, and deliver each as soon as it is complete.

    Args:
        requested: each is the last contents of its cell.
        deliver: called with each of the contents and their storage, in this thread.
        cache_all: cache all intermediate results, for later replays.
        cache_small: cache the last contents of small cells.
        num_threads: None: ``torch.get_num_threads()``.
        block_writers: for contents that are not needed as a whole: called with their elements block
            by block, from any thread. Where that is possible, `deliver` is not called. With block
            writers, the limit of memory includes the requested contents.

    Raises:
        ReplayError: naming the operation that cannot be replayed, or failed.
    """
    computed: list[Contents] = []
    # Denormals are kept on this thread, and on threads that it starts.
    with _UnderWay(), dispatcher.as_eager(), numerics.denormals_flushed(False):
        for contents in list(requested):  # copied: `deliver` may change `requested`
            if contents.op is not None:
                computed.append(contents)
            else:
                deliver(contents, Storages()[contents.cell])  # uninitialized memory
        ops = dependencies(map(attrgetter("op"), computed))
        num_uses = _count_uses(ops)
        largest = max(map(attrgetter("num_bytes"), num_uses), default=0)
        is_small = largest <= MAX_SEQUENTIAL_BYTES
        if cache_all or cache_small or (is_small and block_writers is None):
            _SequentialReplay(ops, num_uses, cache_all, cache_small).run(computed, deliver)
        else:
            _run_scheduled(ops, computed, deliver, num_threads, block_writers)


def _count_uses(ops: list[Op]) -> Counter[Cell]:
    """How often each cell is read or made by `ops`."""
    num_uses = Counter[Cell]()
    for op in ops:
        num_uses.update(cells_of(op))
    return num_uses


def _run_scheduled(
    ops: list[Op],
    requested: list[Contents],
    deliver: Deliver,
    num_threads: int | None,
    block_writers: Mapping[Contents, BlockWriter] | None,
) -> None:
    """Run the pipeline: restrict `ops` to the demanded elements, build tasks, run threads."""
    by_cell = {contents.cell: contents for contents in requested}
    Workers(
        build_task_graph(slice_to_demand(ops, by_cell)),
        set(by_cell),
        lambda cell, storage: deliver(by_cell[cell], storage),
        num_threads=num_threads or torch.get_num_threads(),
        block_writers={c.cell: writer for c, writer in (block_writers or {}).items()},
        counts_requested=block_writers is not None,
    ).run()


def value_of(deferred: DeferredState, record: Metadata) -> torch.Tensor:
    """The real tensor with metadata `record` on a deferred storage. Callers must not write it."""
    if deferred.real is None:
        computed: list[torch.UntypedStorage] = []
        is_small = deferred.contents.cell.num_bytes <= MAX_CACHED_BYTES
        replay(
            [deferred.contents], lambda _, storage: computed.append(storage), cache_small=is_small
        )
    else:
        computed = [deferred.real]
    with dispatcher.as_eager():
        return view_of(computed[0], record)


def make_real(deferred: DeferredState) -> torch.UntypedStorage:
    """The real memory of a deferred storage, which is computed if there is none yet. After this,
    operations on the storage's fakes read and write that memory.
    """
    if deferred.real is None:
        replay([deferred.contents], deferred.set_real)
    assert deferred.real is not None
    return deferred.real


_cached: weakref.WeakSet[Op] = weakref.WeakSet()
_under_way: set[_UnderWay] = set()
_lock = shared(threading.Lock())  # protects both, and nothing is locked while it is held


class _UnderWay(Restoring):
    """Context of a replay, which may skip operations because the results of later ones are cached:
    until it ends, no other thread drops these.
    """

    def change(self) -> None:
        with holding(_lock):
            _under_way.add(self)

    def restore(self) -> None:
        _under_way.discard(self)


def _drop_cached(ops: Iterable[Op], *, num_replays: int) -> bool:
    """Drop cached results, if no more than `num_replays` are under way, and say whether."""
    with holding(_lock):
        is_safe = len(_under_way) <= num_replays
        for op in ops if is_safe else ():
            op.cached = None
    return is_safe


def clear_cached_results() -> None:
    """Free the results that were cached by ``replay(cache_all=True)``, unless another thread is
    replaying: then the next call frees them.
    """
    if _drop_cached(list(_cached), num_replays=0):
        _cached.clear()


def run_draws(op: Op) -> None:
    """Execute `op`, whose draws cannot be counted, to find the position at which they end."""
    with _UnderWay(), dispatcher.as_eager():
        ops = dependencies([op])
        _SequentialReplay(ops, _count_uses(ops)).run([], lambda *_: None)


class _SequentialReplay:
    """One replay in the recorded order: the storages that exist, and the remaining uses of each."""

    def __init__(
        self,
        ops: list[Op],
        num_uses: Counter[Cell],
        cache_all: bool = False,
        cache_small: bool = False,
    ) -> None:
        self._ops = ops
        self._storages = Storages()
        self._num_uses = num_uses
        self._cache_all = cache_all
        self._last_writers = (
            {cell: op for op in ops for cell in op.modified_cells()} if cache_small else {}
        )
        self._generators = GeneratorPool(KnownStates())

    def run(self, requested: list[Contents], deliver: Deliver) -> None:
        requested_of: dict[Op | None, list[Contents]] = {}
        for contents in requested:
            requested_of.setdefault(contents.op, []).append(contents)
        for op in self._ops:
            is_to_cache = self._cache_all and op.cached is None
            execute(op, self._storages, self._generators)
            if is_to_cache:
                op.cached = {cell: self._storages[cell].clone() for cell in op.modified_cells()}
                _cached.add(op)
            for contents in requested_of.get(op, ()):
                deliver(contents, self._storages[contents.cell])
            self._release(op)

    def _release(self, op: Op) -> None:
        """Free the cells that no operation after `op` uses."""
        for cell in cells_of(op):
            self._num_uses[cell] -= 1
            if not self._num_uses[cell]:
                storage = self._storages.pop(cell, None)
                if storage is not None and cell in self._last_writers:
                    self._cache_last(cell, storage)

    def _cache_last(self, cell: Cell, storage: torch.UntypedStorage) -> None:
        """Cache the last contents of a small cell, and drop cached earlier contents of the cell."""
        op = self._last_writers[cell]
        if storage.nbytes() > MAX_CACHED_BYTES:
            return
        if [*op.modified_cells()] == [cell] and op.cached is None:
            before = [read.contents.op for read in op.reads() if read.contents.cell is cell]
            op.cached = {cell: storage}
            _drop_cached(filter(None, before), num_replays=1)
