"""One recorded operation, done for real.

Enters: operations, in an order in which each finds what it read. Leaves: storages that hold what
they wrote. Invariant: what is made here is the replay's own; nothing that exists already is
written. For the few operators that take no generator the global one is borrowed, and put back.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from torchfake import _private
from torchfake._graph import Cell, External, Made, Op, Read
from torchfake._memory import is_there, new_storage, real_device, view_of
from torchfake._ops import with_generator
from torchfake._positions import Generators
from torchfake.errors import ReplayError

_default_generator = threading.RLock()


class Storages:
    """The memory of cells, from when it is first asked for until it is let go."""

    def __init__(self) -> None:
        self._of: dict[Cell, torch.UntypedStorage] = {}

    def of(self, cell: Cell) -> torch.UntypedStorage:
        """What `cell` is now; memory that is yet to be written, if it is nothing."""
        storage = self._of.get(cell)
        if storage is None:
            try:
                storage = self._of[cell] = new_storage(cell.num_bytes, cell.device)
            except RuntimeError as error:
                raise ReplayError(
                    f"there is no memory for {cell.num_bytes:,} bytes on {cell.device}: {error}. "
                    "save_materialized writes files without it; a smaller dtype needs less"
                ) from error
        return storage

    def put(self, cell: Cell, storage: torch.UntypedStorage) -> None:
        self._of[cell] = storage

    def pop(self, cell: Cell) -> torch.UntypedStorage | None:
        return self._of.pop(cell, None)


def execute(op: Op, storages: Storages, generators: Generators) -> None:
    """Do `op`.

    Raises:
        ReplayError: naming it, if it cannot be done, or failed.
    """
    if op.kept is not None:
        for cell, storage in op.kept.items():
            storages.put(cell, storage.clone())
        return
    result = _run(op, storages, generators)
    for made in op.made:
        _take(made, result if made.place is None else result[made.place], storages)


def _run(op: Op, storages: Storages, generators: Generators) -> Any:
    check_can_be_done(op)
    args = [_real(arg, storages) for arg in op.args]
    kwargs = {name: _real(arg, storages) for name, arg in op.kwargs.items()}
    try:
        with _private.default_dtype(op.default_dtype):
            if op.draw is None:
                return op.func(*args, **kwargs)
            return _draw(op, args, kwargs, generators)
    except Exception as error:
        raise failed(op, error) from error


def check_can_be_done(op: Op) -> None:
    """Refuse what is known to give other values than it gave eager."""
    if op.refusal is not None:
        raise ReplayError(op.refusal)
    for external in op.externals():
        if external.is_changed:
            raise ReplayError(
                f"{op} was recorded with a real tensor of shape {list(external.tensor.shape)}, "
                "which was written in place since. Its values then are gone: pass a clone() "
                "where a tensor is to be written later"
            )


def failed(op: Op, error: Exception) -> ReplayError:
    """What to raise for `error`, with that as its cause."""
    return ReplayError(f"{op} failed when it was done for real: {error}")


def _real(arg: Any, storages: Storages) -> Any:
    if type(arg) is Read:
        return view_of(storages.of(arg.contents.cell), arg.record)
    if type(arg) is External:
        return arg.tensor
    if type(arg) in (list, tuple):
        return [_real(item, storages) for item in arg]
    if type(arg) is torch.device and not is_there(arg):
        return real_device(arg)
    return arg


def _take(made: Made, result: torch.Tensor, storages: Storages) -> None:
    """A new storage; laid out as its record says, should the kernel have chosen otherwise."""
    record, cell = made.record, made.cell
    same = result.stride() == record.stride and result.storage_offset() == record.offset
    if same and result.untyped_storage().nbytes() == cell.num_bytes:
        storages.put(cell, result.untyped_storage())
    else:
        view_of(storages.of(cell), record).copy_(result)


def _draw(op: Op, args: list[Any], kwargs: dict[str, Any], generators: Generators) -> Any:
    """Do `op`, whose draws begin where it says."""
    generator = generators.at(op.draw)
    result = _with_draws_of(generator, op.func, args, kwargs)
    if op.draw.taken is None:
        op.draw.end = generator.get_state()
        generators.drawn_to(op.draw.end)
    else:
        generators.drawn(op.draw.taken)
    return result


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
