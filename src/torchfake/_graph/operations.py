"""Recorded operations, and the contents of storages before and after them.

Input: an operator, its arguments, and the source location of the call. Output: a node of the graph,
and the nodes on which it depends. Invariant: an operation is never changed so that it would give
other values; ``number`` orders operations as they were recorded.

A storage is a :class:`Cell` in the graph. Each operation that writes the storage gives it new
contents, :class:`Written`; the previous contents stay for the operations that read them.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch

from torchfake._core.metadata import Metadata
from torchfake._core.source_location import RawLocation, SourceLocation
from torchfake._graph.rare_fields import RareField
from torchfake._torch import numerics
from torchfake._torch.contexts import shared

_Kind = TypeVar("_Kind")

_numbers = itertools.count()

next_number = partial(next, _numbers)
"""Takes the next number of an operation; operations recorded later have greater numbers."""


recording_lock = shared(threading.RLock())
"""Held while an operation is recorded: the threads of a mode may write parts of one storage, and
the contents that an operation reads must match the contents that it gives. Taken by ``with``, not
by ``holding()``: ``with`` admits no interrupt between this lock and its block, and costs less."""


class Cell:
    """The identity of a storage in the graph; each write gives the storage new contents.

    A cell also stands for the contents before any write, uninitialized memory. An operation that
    overwrites a whole storage, as most initializers do, reads these contents.
    """

    __slots__ = ("device", "num_bytes")

    op: ClassVar[None] = None  # no operation has written uninitialized memory

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.num_bytes = num_bytes
        self.device = device

    @property
    def cell(self) -> Cell:
        return self


class Written(NamedTuple):
    """The contents of a cell after an operation."""

    cell: Cell
    op: Op


Contents = Cell | Written
"""The contents of a cell at some time. Both classes have ``cell`` and ``op`` (None for a Cell)."""


class Read(NamedTuple):
    """A deferred fake as an argument: its metadata, and the contents of its storage at the call."""

    contents: Contents
    record: Metadata


class Output(NamedTuple):
    """A result of an operation, in a new storage."""

    position: int | None  # the index among several results; None for a single result
    cell: Cell
    record: Metadata


NO_KWARGS: dict[str, Any] = {}
"""The keyword arguments of operations that have none: shared, and never written."""


class Op:
    """A recorded operation: its arguments, with a :class:`Read` in place of each deferred fake."""

    __slots__ = (
        "__weakref__", "_rare", "_written", "args", "draw", "func", "kwargs", "location", "number",
        "numerics", "outputs",
    )  # fmt: skip

    unreplayable_reason = RareField[str | None](None)
    # Results of an earlier replay:
    cached = RareField[dict[Cell, torch.UntypedStorage] | None](None)
    gives_up_cached = RareField(False)  # whether a replay takes these storages, without a copy
    digest = RareField[bytes | None](None)  # see torchfake._graph.digest
    # The metadata of ``out=`` arguments after the call, which may have resized them, by name:
    outs_after = RareField[dict[str, list[Metadata]]](NO_KWARGS)
    # Of matrix products only:
    product_settings = RareField[numerics.ProductSettings | None](None)
    is_sharding = RareField(False)  # called by torch to shard, to pad, or to compute with shards

    def __init__(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Any,
        location: RawLocation | None,
        number: int | None = None,
        settings: numerics.Numerics | None = None,
    ) -> None:
        # Parts into which a replay splits an operation have fractional numbers.
        self.number: float = next_number() if number is None else number
        self.func = func
        self.args = args
        self.kwargs = kwargs or NO_KWARGS
        self.location = location
        self.numerics = settings or numerics.current()
        self.outputs: tuple[Output, ...] = ()
        self.draw: Any = None  # a torchfake._random.recorded_draws.Draw
        self._written: Cell | tuple[Cell, ...] = ()  # most write at most one existing storage
        self._rare: dict[str, Any] | None = None

    @property
    def mutated(self) -> tuple[Cell, ...]:
        """The cells that the operation writes and that existed before it."""
        written = self._written
        return written if type(written) is tuple else (written,)  # type: ignore[return-value]

    @mutated.setter
    def mutated(self, cells: tuple[Cell, ...]) -> None:
        self._written = cells[0] if len(cells) == 1 else cells

    def add_written(self, cell: Cell) -> None:
        """Add an existing cell to the cells that the operation writes."""
        self._written = (*self.mutated, cell) if self._written else cell

    @property
    def source_location(self) -> SourceLocation | None:
        return None if self.location is None else SourceLocation(*self.location)

    def reads(self) -> list[Read]:
        """The arguments of class :class:`Read`, those in lists included."""
        return self.arguments_of(Read)

    def arguments_of(self, kind: type[_Kind]) -> list[_Kind]:
        """The arguments of class `kind`, such as ``External``; those in lists included."""
        found = []
        for value in (*self.args, *self.kwargs.values()):
            for item in value if type(value) in (list, tuple) else (value,):
                if type(item) is kind:
                    found.append(item)
        return found

    def modified_cells(self) -> Iterator[Cell]:
        """The cells that have new contents after this operation."""
        yield from (output.cell for output in self.outputs)
        yield from self.mutated

    @property
    def name(self) -> str:
        return str(self.func) if hasattr(self.func, "_schema") else str(self.func.__qualname__)

    def __str__(self) -> str:
        return self.name if self.location is None else f"{self.name} at {self.source_location}"


def dependencies(requested: Iterable[Op | None], *, ignore_cached: bool = False) -> list[Op]:
    """The operations that have to run for `requested`, these included, in recorded order.

    In that order, each operation finds the contents that it read: an operation that overwrote them
    was recorded later. Operations with cached results depend on nothing. A draw depends on the
    draws that determine its position in the generator's sequence.

    With `ignore_cached`, an operation with cached results keeps its dependencies, but an operation
    whose digest is known has none.
    """
    found: dict[float, Op] = {}
    pending = list(requested)
    while pending:
        op = pending.pop()
        if op is None or op.number in found:
            continue
        found[op.number] = op
        if (op.digest if ignore_cached else op.cached) is None:
            for read in op.reads():
                pending.append(read.contents.op)
            draw = op.draw
            if draw is not None and type(draw.anchor) is Op:
                pending.append(draw.previous if ignore_cached else draw.pending_draw)
    return sorted(found.values(), key=operator.attrgetter("number"))
