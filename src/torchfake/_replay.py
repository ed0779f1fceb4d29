"""Recorded operations, done for real.

Enters: contents that are wanted. Leaves: real storages that hold them. Invariant: what is made here
is the replay's own until it is handed over; nothing that exists already is written. Draws are from
a generator of the replay's; for the few operators that take none the global one is borrowed, and
put back.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchfake import _private, _streams
from torchfake._graph import Cell, Contents, Deferred, External, Made, Op, Read, history
from torchfake._metadata import Metadata
from torchfake._ops import with_generator
from torchfake.errors import ReplayError

Ready = Callable[[Contents, torch.UntypedStorage], None]

MAX_KEPT_BYTES = 1024 * 1024
"""Values up to this size are kept once they were read, and those they were computed from: a
constructor that reads them in a loop would have all of them computed again each time."""

_default_generator = threading.RLock()


_CPU = torch.device("cpu")


def is_there(device: torch.device) -> bool:
    """Whether this machine has `device`; what was recorded on another is replayed on the CPU."""
    if device.type != "cuda":
        return True
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def replay(
    wanted: Iterable[Contents], ready: Ready, *, keep: bool = False, keep_small: bool = False
) -> None:
    """Make the contents `wanted`, each the last of its cell, and hand each over as soon as it is
    there. With `keep`, all results on the way are kept for later replays; with `keep_small`, of the
    small cells what they hold in the end.

    Raises:
        ReplayError: naming the operation that cannot be done, or failed.
    """
    wanted = list(wanted)
    run = _Replay(history(contents.op for contents in wanted), keep, keep_small)
    with _private.as_eager():
        for contents in wanted:
            if contents.op is None:
                ready(contents, run.storage(contents.cell))
        waiting: dict[int, list[Contents]] = {}
        for contents in wanted:
            if contents.op is not None:
                waiting.setdefault(contents.op.number, []).append(contents)
        for op in run.ops:
            run.do(op)
            for contents in waiting.pop(op.number, ()):
                ready(contents, run.storage(contents.cell))
            run.release(op)


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
    run = _Replay(history([op]))
    with _private.as_eager():
        for each in run.ops:
            run.do(each)
            run.release(each)


class _Replay:
    """One replay: the storages there are now, and how often each will still be asked for."""

    def __init__(self, ops: list[Op], keep: bool = False, keep_small: bool = False) -> None:
        self.ops = ops
        self._storages: dict[Cell, torch.UntypedStorage] = {}
        self._uses = Counter(cell for op in ops for cell in _cells(op))
        self._keep = keep
        self._last = {cell: op for op in ops for cell in op.results()} if keep_small else {}
        self._generators = _Generators()

    def do(self, op: Op) -> None:
        if op.kept is not None:
            for cell, storage in op.kept.items():
                self._storages[cell] = storage.clone()
            return
        result = self._run(op)
        for made in op.made:
            self._take(made, result if made.place is None else result[made.place])
        if self._keep:
            op.kept = {cell: self.storage(cell).clone() for cell in op.results()}
            _kept.add(op)

    def _run(self, op: Op) -> Any:
        if op.refusal is not None:
            raise ReplayError(op.refusal)
        args = [self._real(op, arg) for arg in op.args]
        kwargs = {name: self._real(op, arg) for name, arg in op.kwargs.items()}
        try:
            with _private.default_dtype(op.default_dtype):
                if op.draw is None:
                    return op.func(*args, **kwargs)
                return self._generators.draw(op, args, kwargs)
        except Exception as error:
            raise ReplayError(f"{op} failed when it was done for real: {error}") from error

    def storage(self, cell: Cell) -> torch.UntypedStorage:
        """What `cell` is now; memory that is yet to be written, if it is nothing."""
        storage = self._storages.get(cell)
        if storage is None:
            device = cell.device if is_there(cell.device) else _CPU
            storage = torch.UntypedStorage(cell.num_bytes, device=device)
            self._storages[cell] = storage
        return storage

    def release(self, op: Op) -> None:
        """Let go of what is not asked for after `op`."""
        for cell in _cells(op):
            self._uses[cell] -= 1
            if not self._uses[cell]:
                self._keep_last(cell, self._storages.pop(cell, None))

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

    def _real(self, op: Op, arg: Any) -> Any:
        if type(arg) is Read:
            return view_of(self.storage(arg.contents.cell), arg.record)
        if type(arg) is External:
            if arg.is_changed:
                raise ReplayError(
                    f"{op} was recorded with a real tensor of shape {list(arg.tensor.shape)}, "
                    "which was written in place since. Its values then are gone: pass a clone() "
                    "where a tensor is to be written later"
                )
            return arg.tensor
        if type(arg) in (list, tuple):
            return [self._real(op, item) for item in arg]
        if type(arg) is torch.device and not is_there(arg):
            return _CPU
        return arg

    def _take(self, made: Made, result: torch.Tensor) -> None:
        """A new storage; laid out as its record says, should the kernel have chosen otherwise."""
        record, cell = made.record, made.cell
        same = result.stride() == record.stride and result.storage_offset() == record.offset
        if same and result.untyped_storage().nbytes() == cell.num_bytes:
            self._storages[cell] = result.untyped_storage()
        else:
            view_of(self.storage(cell), record).copy_(result)


def _cells(op: Op) -> Iterator[Cell]:
    yield from (read.contents.cell for read in op.reads())
    yield from (made.cell for made in op.made)


class _Generators:
    """The replay's own generator, left where the last draw ended."""

    def __init__(self) -> None:
        self._generator: torch.Generator | None = None
        self._anchor: Any = None
        self._words = 0

    def draw(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Do `op`, whose draws begin where it says."""
        generator = self._at(op.draw)
        result = _with_draws_of(generator, op.func, args, kwargs)
        op.draw.let_go()
        if op.draw.taken is None:
            op.draw.end = generator.get_state()
            self._anchor, self._words = op, 0
        else:
            self._words += op.draw.taken
        return result

    def _at(self, draw: _streams.Draw) -> torch.Generator:
        generator = self._generator
        if generator is None or generator.device != draw.device:
            generator = self._generator = torch.Generator(device=draw.device)
            self._anchor = None
        if self._anchor is not draw.anchor or self._words != draw.words:
            generator.set_state(draw.state())
            self._anchor, self._words = draw.anchor, draw.words
        return generator


def _with_draws_of(
    generator: torch.Generator, func: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Run `func` with draws from `generator`, whether it takes one or not."""
    takes_one = with_generator(func) if hasattr(func, "_schema") else _initialiser(func)
    if takes_one is not None:
        return takes_one(*args, **{**kwargs, "generator": generator})
    with _default_generator:
        default = _private.default_generator_of(generator.device)
        before = default.get_state()
        default.set_state(generator.get_state())
        try:
            return func(*args, **kwargs)
        finally:
            generator.set_state(default.get_state())
            default.set_state(before)


def _initialiser(function: Any) -> Any:
    """A function of torch.nn.init that takes all of its draws from ``generator=``."""
    return function if function is not torch.nn.init.sparse_ else None


def view_of(storage: torch.UntypedStorage, record: Metadata) -> torch.Tensor:
    """A real tensor of that metadata on `storage`."""
    view = torch.empty(0, dtype=record.dtype, device=storage.device)
    view.set_(storage, record.offset, record.size, record.stride)
    _private.set_bits(view, record.conj, record.neg)
    return view
