"""What was done to deferred storages, written down so that it can be done for real.

Enters: operations, from :mod:`torchfake._record`. Leaves: those that some contents come from, in
the order they were done. Views are no operations: a fake is a record and a storage, so only what
makes a storage or writes one is here. Invariant: the graph points backwards alone. A storage holds
its contents, contents the operation they come from, an operation the contents it read; nothing
points to a storage or a fake, so what nothing reaches any more is freed at once.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from torchfake import _private
from torchfake._memory import flat_view
from torchfake._metadata import Metadata, contiguous_stride, intern
from torchfake._origin import Origin, Place
from torchfake.errors import RecordError

_numbers = itertools.count()


class Cell:
    """The identity of a storage in the graph, through all its contents."""

    __slots__ = ("device", "num_bytes")

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.num_bytes = num_bytes
        self.device = device


class Contents:
    """What a cell holds after an operation; before any, memory nobody has written."""

    __slots__ = ("cell", "op")

    def __init__(self, cell: Cell, op: Op | None = None) -> None:
        self.cell = cell
        self.op = op


class Read(NamedTuple):
    """An argument that was a deferred fake: what it looked at, and how."""

    contents: Contents
    record: Metadata


class External:
    """An argument that was a real tensor: held by reference, and never to be written again."""

    __slots__ = ("_counted", "_sample", "_version", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._counted: torch.Tensor | None = None
        self._version = 0
        with _private.nobody_watching():
            self.tensor = tensor.detach()  # its memory now, whatever ``tensor.data`` is later
            if not tensor.is_inference():
                self._counted, self._version = tensor, tensor._version
                self._sample = _sample(self.tensor)
            elif tensor.numel() * tensor.element_size() <= MAX_COPIED_BYTES:
                self.tensor = tensor.clone()
            else:
                raise RecordError(
                    f"a real inference tensor of shape {list(tensor.shape)} takes part in a "
                    "deferred operation. Inference tensors count no writes, so whether this one "
                    "changes before it is used could not be found out: pass tensor.clone() made "
                    "outside of inference mode"
                )

    @property
    def num_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def is_changed(self) -> bool:
        if self._counted is None:
            return False
        with _private.nobody_watching():
            return self._counted._version != self._version or _sample(self.tensor) != self._sample


def _sample(tensor: torch.Tensor) -> int:
    """A number that tells of most writes that count no version, as through ``tensor.data``."""
    flat = tensor.as_strided((tensor.numel(),), (1,)) if tensor.is_contiguous() else tensor
    step = max(1, tensor.numel() // _SAMPLED)
    chosen = flat[::step] if flat.dim() == 1 else flat.reshape(-1)[::step]
    host = torch.empty(chosen.shape, dtype=tensor.dtype, device="cpu").copy_(chosen)
    return hash(ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()))


_SAMPLED = 512
"""Elements of a real tensor that are looked at, evenly spread."""


MAX_COPIED_BYTES = 64 * 1024
"""Inference tensors up to this size are copied."""

MAX_EXTERNAL_BYTES = 64 * 1024
"""Real tensors of more than this are not kept for the sake of another materialization."""


class Made(NamedTuple):
    """A result with a storage of its own."""

    place: int | None  # among several results
    cell: Cell
    record: Metadata


class Op:
    """One operation: its arguments, with a :class:`Read` for each fake."""

    made: tuple[Made, ...] = ()
    written: tuple[Cell, ...] = ()
    draw: Any = None  # where in a generator's stream: see torchfake._streams
    refusal: str | None = None  # why it cannot be done again
    kept: dict[Cell, torch.UntypedStorage] | None = None  # its results, if they were kept
    digest: bytes | None = None  # of what it does: see torchfake._digest
    is_sharding = False  # torch has done it to cut, to pad, or to compute with shards

    def __init__(self, func: Any, args: Any, kwargs: Any, place: Place | None) -> None:
        self.number: float = next(_numbers)  # parts of one are numbered in between
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.place = place
        self.default_dtype = torch.get_default_dtype()

    @property
    def origin(self) -> Origin | None:
        return None if self.place is None else Origin(*self.place)

    def reads(self) -> Iterator[Read]:
        """The fakes among the arguments, lists opened."""
        return self._arguments(Read)

    def externals(self) -> Iterator[External]:
        """The real tensors among the arguments, lists opened."""
        return self._arguments(External)

    def _arguments(self, kind: type) -> Iterator[Any]:
        for value in (*self.args, *self.kwargs.values()):
            if type(value) is kind:
                yield value
            elif type(value) in (list, tuple):
                yield from (item for item in value if type(item) is kind)

    def results(self) -> Iterator[Cell]:
        """The cells that this operation leaves with other contents."""
        yield from (made.cell for made in self.made)
        yield from self.written

    @property
    def name(self) -> str:
        return str(self.func) if hasattr(self.func, "_schema") else str(self.func.__qualname__)

    def __str__(self) -> str:
        return self.name if self.place is None else f"{self.name} at {self.origin}"


class Deferred:
    """What a deferred storage has more than another: its contents, or the memory that holds
    them.
    """

    __slots__ = ("contents", "is_inference", "mark", "real")

    def __init__(self, contents: Contents, mark: int) -> None:
        self.contents = contents
        self.mark = mark
        self.is_inference = torch.is_inference_mode_enabled()
        self.real: torch.UntypedStorage | None = None  # from when it was materialized

    def take(self, contents: Contents, storage: torch.UntypedStorage) -> None:
        """Have memory from now on, which a replay has made."""
        assert contents is self.contents
        self.real = storage

    def resized(self, num_bytes: int) -> None:
        if self.real is not None:
            self.real.resize_(num_bytes)
        elif num_bytes == 0:  # FSDP gives the memory back
            self.contents = Contents(Cell(0, self.contents.cell.device))
        else:
            self._write(torch.ops.aten.resize_.default, (self.as_bytes(), [num_bytes]))
            self.contents.cell.num_bytes = max(num_bytes, self.contents.cell.num_bytes)

    def spoil(self, how: str) -> None:
        self._write(torch.ops.aten.fill_.Scalar, (self.as_bytes(), 0))
        assert self.contents.op is not None
        self.contents.op.refusal = (
            f"a deferred tensor was written past all operators, by {how}: that is not recorded. "
            "Write through a tensor (fill_, copy_), or materialize first"
        )

    def _write(self, func: Any, args: tuple[Any, ...]) -> None:
        cell = self.contents.cell
        op = Op(func, args, {}, None)
        op.written = (cell,)
        self.contents = Contents(cell, op)

    def copy(self) -> Deferred:
        """The same for a storage with a copy of the bytes."""
        if self.real is not None:
            return held(self.real, self.mark)
        return _copied(self.as_bytes(), self.contents.cell, self.mark)

    def as_bytes(self) -> Read:
        """All of it, as one dimension of bytes."""
        cell = self.contents.cell
        return Read(self.contents, _bytes_record(cell.num_bytes, cell.device))


def adopted(real: torch.UntypedStorage, mark: int) -> Deferred:
    """What a storage that is `real` has: somebody handed over memory that is there."""
    deferred = Deferred(Contents(Cell(real.nbytes(), real.device)), mark)
    deferred.real = real
    return deferred


def held(real: torch.UntypedStorage, mark: int) -> Deferred:
    """What a storage with a copy of `real` has."""
    with _private.nobody_watching():
        return _copied(
            External(flat_view(real, torch.uint8).clone()), Cell(real.nbytes(), real.device), mark
        )


def _copied(source: Read | External, like: Cell, mark: int) -> Deferred:
    cell = Cell(like.num_bytes, like.device)
    op = Op(torch.ops.aten.clone.default, (source,), {}, None)
    contents = Contents(cell, op)
    op.made = (Made(None, cell, _bytes_record(cell.num_bytes, cell.device)),)
    return Deferred(contents, mark)


def _bytes_record(num_bytes: int, device: torch.device) -> Metadata:
    size = (num_bytes,)
    return intern(size, contiguous_stride(size), 0, torch.uint8, device)


def history(wanted: Iterable[Op | None], *, all_of_it: bool = False) -> list[Op]:
    """The operations to be done for `wanted`, in the order they were done.

    In that order each finds what it read: an operation that overwrote it came later. Those whose
    results were kept need nothing before them. A draw needs those before it on which its place in
    the generator's stream depends.

    With `all_of_it`, all that `wanted` depend on, whatever is at hand by now; but what is behind an
    operation whose digest is known.
    """
    found: dict[float, Op] = {}
    waiting = [op for op in wanted if op is not None]
    while waiting:
        op = waiting.pop()
        if op.number in found:
            continue
        found[op.number] = op
        if (op.digest if all_of_it else op.kept) is None:
            waiting.extend(r.contents.op for r in op.reads() if r.contents.op is not None)
            before = None if op.draw is None else op.draw.before if all_of_it else op.draw.waits_for
            if before is not None:
                waiting.append(before)
    return [found[number] for number in sorted(found)]
