"""The state of deferred storages: contents that were recorded, or a real storage.

Input: contents of a cell; real storages. Output: :class:`DeferredState`, which a deferred
``Storage`` has as its ``deferred``. Invariant: the contents are those after the last recorded
write; once there is a real storage, the program writes to its memory, and no write is recorded.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core.memory import flat_view
from torchfake._core.metadata import Metadata, contiguous_stride, intern
from torchfake._core.source_location import RawLocation
from torchfake._graph.externals import External
from torchfake._graph.file_slices import FileSlice, read_slice
from torchfake._graph.operations import (
    Cell,
    Contents,
    Op,
    Output,
    Read,
    Written,
    recording_lock,
)
from torchfake._graph.rare_fields import RareField
from torchfake._torch import dispatcher

VersionCounters = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Pairs of tensors without memory: the first has the version counter that some fakes share, the
second the version counter that the real tensors of these fakes share."""


class DeferredState:
    """The state of a deferred storage: recorded contents, or real memory."""

    __slots__ = ("_rare", "cell", "mark", "op", "real")

    num_bytes = RareField[int | None](None)  # the storage's size, if smaller than its cell's
    version_counters = RareField[VersionCounters](())  # of the storage's materialized tensors
    alias_of = RareField[torch.Tensor | None](None)  # the real tensor that the fakes stand for

    def __init__(self, cell: Cell, op: Op | None, mark: int) -> None:
        self.cell = cell
        self.op = op  # the last operation that wrote the storage; None: uninitialized memory
        self.mark = mark
        self.real: torch.UntypedStorage | None = None  # once the storage is materialized
        self._rare: dict[str, Any] | None = None

    @property
    def contents(self) -> Contents:
        """The contents of the storage after the last recorded write."""
        op = self.op
        return self.cell if op is None else Written(self.cell, op)

    @contents.setter
    def contents(self, contents: Contents) -> None:
        self.cell, self.op = contents.cell, contents.op

    def set_real(self, contents: Contents, storage: torch.UntypedStorage) -> None:
        """Set the real storage that a replay has made from `contents`. If two threads have replayed
        these at the same time, the storage of the first stays, since the program may have it.
        """
        with recording_lock:
            if self.real is None:
                assert contents == self.contents
                if self.num_bytes is not None:
                    storage.resize_(self.num_bytes)
                self.real = storage

    def resize(self, num_bytes: int) -> None:
        if self.real is not None:
            self.real.resize_(num_bytes)
        elif num_bytes == 0:  # FSDP frees the memory
            self.contents, self.num_bytes = Cell(0, self.cell.device), None
        else:
            self._record_write(torch.ops.aten.resize_.default, (self.as_bytes(), [num_bytes]))
            cell = self.cell
            self.num_bytes = num_bytes if num_bytes < cell.num_bytes else None
            cell.num_bytes = max(num_bytes, cell.num_bytes)

    def refuse(self, reason: str) -> None:
        """Make every replay of the contents an error that gives `reason`."""
        self._record_write(torch.ops.aten.fill_.Scalar, (self.as_bytes(), 0))
        assert self.op is not None
        self.op.unreplayable_reason = reason

    def _record_write(self, func: Any, args: tuple[Any, ...]) -> None:
        self.op = Op(func, args, {}, None)
        self.op.add_written(self.cell)

    def copy(self) -> DeferredState:
        """The state of a new storage that holds a copy of the bytes."""
        if self.real is not None:
            return deferred_from_copy(self.real, self.mark)
        return _clone_of(self.as_bytes(), self.cell, self.mark)

    def as_bytes(self) -> Read:
        """A read of the whole cell, as uint8[n]."""
        cell = self.cell
        return Read(self.contents, _bytes_record(cell.num_bytes, cell.device))


def deferred_from_real(real: torch.UntypedStorage, mark: int) -> DeferredState:
    """The state of a deferred storage whose real storage is `real`."""
    deferred = DeferredState(Cell(real.nbytes(), real.device), None, mark)
    deferred.real = real
    return deferred


def deferred_alias(real: torch.Tensor, mark: int) -> DeferredState:
    """The state of a storage whose fakes stand for `real` and views of it. The tensors stay fakes
    where C++ must see the device of a fake; writes to them go to the memory of `real`.
    """
    deferred = deferred_from_real(real.untyped_storage(), mark)
    deferred.alias_of = real
    return deferred


def deferred_from_copy(real: torch.UntypedStorage, mark: int) -> DeferredState:
    """The state of a deferred storage that holds a copy of `real`, made by this call."""
    with dispatcher.no_interception():
        source = External(flat_view(real, torch.uint8).clone())
        return _clone_of(source, Cell(real.nbytes(), real.device), mark)


def deferred_from_file(
    source: FileSlice, mark: int, location: RawLocation | None = None
) -> DeferredState:
    """The state of a deferred storage that holds bytes of a file, which the replay reads."""
    cell = Cell(source.num_bytes, torch.device("cpu"))
    op = Op(read_slice, (source,), {}, location)
    op.outputs = (Output(None, cell, _bytes_record(cell.num_bytes, cell.device)),)
    return DeferredState(cell, op, mark)


def _clone_of(source: Read | External, like: Cell, mark: int) -> DeferredState:
    cell = Cell(like.num_bytes, like.device)
    op = Op(torch.ops.aten.clone.default, (source,), {}, None)
    op.outputs = (Output(None, cell, _bytes_record(cell.num_bytes, cell.device)),)
    return DeferredState(cell, op, mark)


def _bytes_record(num_bytes: int, device: torch.device) -> Metadata:
    size = (num_bytes,)
    return intern(size, contiguous_stride(size), 0, torch.uint8, device)
