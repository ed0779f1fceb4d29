"""Observers: what they are told of a run on fakes, and what they may ask.

Input: operators that were run, and their results. Output: calls of the methods of an
:class:`Observer`. Invariant: no storage lives longer; what an observer raises leaves the operator
during which it was told.

A storage that is new in the result of an operator is born there; a weak reference tells when it is
freed. The callback of that reference is in C, since Python drops a KeyboardInterrupt that is raised
in a callback; the observer is told before the next storage is born, in the order of the deaths.
"""

from __future__ import annotations

import weakref
from collections import deque
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from torchfake._core.gpu_profiles import CudaProfile
from torchfake._core.source_location import RawLocation
from torchfake._core.storage import Storage
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake.observe.modules import RunningModules

RESULT, RESIZED, EXISTING = "result", "resized", "existing"
"""The kinds of allocations: for the result of an operator; for a storage that was resized; memory
that was there before, of which an observer is told when it first meets it."""


class Allocation:
    """Memory of one size that a storage has from when it is born, or resized, until it is freed, or
    resized again.
    """

    __slots__ = ("device", "kind", "location", "note", "num_bytes", "op", "ref", "stream")

    num_bytes: int
    device: torch.device
    stream: int  # number of the device's stream that was current; 0 is the default one
    kind: str  # RESULT, RESIZED or EXISTING
    op: Any  # the operator that allocated it, or by which it was met; None if by none
    location: RawLocation | None  # the line of the program, see SourceLocation
    note: Any  # for the observer
    ref: weakref.ref[Storage]


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows the allocation that ends with the storage."""

    __slots__ = ("allocation", "key")
    allocation: Allocation
    key: int


class Observer:
    """Base of what observes a run: override what you want to be told of.

    Methods are called on the thread that runs the operator. Operators that they call are not
    observed.

    Attributes:
        modules: while it observes, the modules that are running: `modules.name` is the innermost
            one, or in a backward pass that whose gradient is computed.
        gpu: while it observes, the GPU that the CUDA devices of the mode are, if it fakes them.
        sees_parts: whether operators that C++ composes of others are seen as these in inference
            mode too, where torch hands them over in one piece.
        last_first: operators whose results are born from the last to the first.
    """

    modules: RunningModules | None = None
    gpu: CudaProfile | None = None
    sees_parts = False
    last_first: frozenset[Any] = frozenset()

    _machine: Any = None  # the fake devices of the mode

    def __init__(self) -> None:
        self._refs: dict[int, _Ref] = {}  # of storages that are alive, by identity
        self._dead: deque[_Ref] = deque()  # in the order in which they died
        self._streams: dict[Any, int] = {0: 0}  # small numbers, by the number that torch has

    # What it is told.

    def call_operator(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Around each operator: call ``run(func, types, args, kwargs)``, return its result."""
        return run(func, types, args, kwargs)

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operator was run. Arguments and results are fakes, whose metadata can be read.

        `result` is NotImplemented if a tensor class of another library takes the call apart: its
        parts follow.
        """

    def storage_born(self, allocation: Allocation) -> None:
        """Memory was allocated."""

    def storage_freed(self, allocation: Allocation) -> None:
        """Memory was freed: told before the next memory is allocated, or by `settle`."""

    def storage_used(self, allocation: Allocation, stream: int) -> None:
        """Work on another stream uses memory: ``tensor.record_stream(stream)``."""

    def storage_resized(self, storage: Storage) -> None:
        """``tensor.untyped_storage().resize_()``, which calls no operator, has given a storage
        another size: by default the observer is told of the new memory, and of the old as freed.
        """
        if self.allocation_of(storage) is not None:
            self.look_at(storage, torch.ops.aten.resize_.default)

    def event_recorded(self, event: Any, stream: int) -> None:
        """A stream of the fake device records an event."""

    def event_awaited(self, event: Any, stream: int) -> None:
        """What is put on a stream from here on waits for an event."""

    def module_entered(self, name: str, module: nn.Module) -> None:
        """The forward of a module begins; `name` is its full name, "" of the root."""

    def module_left(self, name: str, module: nn.Module) -> None:
        """The forward of a module ends, or raises."""

    # What it may ask.

    def allocation_of(self, storage: Storage | None) -> Allocation | None:
        """The present memory of a storage, if it was told of that: see `storage_of`."""
        ref = self._refs.get(id(storage))
        return None if ref is None or ref() is None else ref.allocation

    def add_existing(self, storage: Storage, note: Any = None) -> Allocation:
        """Tell of the memory of a storage that was there before, unless it was told of that."""
        return self.allocation_of(storage) or self._add(storage, None, EXISTING, note)

    def alive(self) -> list[Allocation]:
        """What it was told of and is alive, in the order of allocation."""
        self.settle()
        return list(map(attrgetter("allocation"), self._refs.values()))

    def settle(self) -> None:
        """Tell of what was freed since the last allocation."""
        while self._dead:
            self._free(self._dead.popleft())

    def forget(self) -> list[Allocation]:
        """What is alive; nothing more is told of it."""
        allocations = self.alive()
        self._refs.clear()
        self._dead = deque()  # the callbacks of the references know the one before
        return allocations

    def current_stream(self, index: int | None = None) -> int:
        """The number of the current stream of a fake device, by default of the current one."""
        machine = self._machine
        if machine is None:
            return 0
        stream = machine.streams.get(machine.current if index is None else index)
        return 0 if stream is None else self.number_of(stream.stream_id)

    def number_of(self, stream: Any) -> int:
        """A small number for a stream: 0 is the default one."""
        return self._streams.setdefault(stream, len(self._streams))

    def look_at(self, storage: Storage, op: Any, given: Any = ()) -> None:
        """Tell of a storage if it is new, or resized: done for the results of each operator.

        Args:
            storage: of a result.
            op: the operator.
            given: its arguments: a storage of one of these was there before.
        """
        ref = self._refs.get(id(storage))
        if ref is None or ref() is None:
            self._add(storage, op, EXISTING if _is_among(storage, given) else RESULT)
        elif ref.allocation.num_bytes != storage.num_bytes:
            self._add(storage, op, RESIZED, ref.allocation.note)  # then the old memory is freed
            self._free(ref)

    # How that is found out.

    def _run(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = run(func, types, args, kwargs)
        if isinstance(result, FakeTensor):
            self.look_at(result._fake_storage, func, (*args, *kwargs.values()))
        elif isinstance(result, (list, tuple)):
            for item in reversed(result) if func in self.last_first else result:
                if isinstance(item, FakeTensor):
                    self.look_at(item._fake_storage, func, (*args, *kwargs.values()))
        self.operator_called(func, args, kwargs, result)
        return result

    def _add(self, storage: Storage, op: Any, kind: str, note: Any = None) -> Allocation:
        if self._dead:
            self.settle()
        made = Allocation()
        made.num_bytes, made.device = storage.num_bytes, storage.device
        made.kind, made.op, made.location, made.note = kind, op, storage.location, note
        index = made.device.index
        made.stream = 0 if index is None else self.current_stream(index)
        made.ref = ref = _Ref(storage, self._dead.append)
        ref.key, ref.allocation = id(storage), made
        self._refs[ref.key] = ref
        self.storage_born(made)
        return made

    def _free(self, ref: _Ref) -> None:
        if self._refs.get(ref.key) is ref:  # and not of the memory that came with a resize
            del self._refs[ref.key]
        del ref.allocation.ref  # its callback too: it is freed once
        self.storage_freed(ref.allocation)


def _is_among(storage: Storage, values: Any) -> bool:
    """Whether one of these, or of lists of them, is on a storage."""
    for value in values:
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, FakeTensor) and each._fake_storage is storage:
                return True
    return False
