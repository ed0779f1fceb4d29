"""Observers of a run on fakes: their notifications and queries.

Input: operators that were run, and their results. Output: calls of the methods of an
:class:`Observer`. Invariant: no storage lives longer because it is observed; an exception raised by
an observer propagates out of the operator that it was notified of.

A storage is allocated by the operator in whose result it first appears; a weak reference notices
when it is freed. The callback of this reference is in C, since Python drops a KeyboardInterrupt
raised in a callback; observers are notified before the next allocation, in the order of the frees.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from torchfake._core.gpu_profiles import CudaProfile, T
from torchfake._core.source_location import RawLocation
from torchfake._core.storage import Storage
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake.observe.modules import RunningModules

RESULT, RESIZED, EXISTING = "result", "resized", "existing"
"""The kinds of allocations: for the result of an operator; for a storage that was resized; memory
that existed before the observation, reported when it is first met."""


class Allocation:
    """The memory of a storage, from its allocation or a resize until it is freed or resized."""

    __slots__ = ("device", "kind", "location", "note", "num_bytes", "op", "ref", "stream")

    num_bytes: int
    device: torch.device
    stream: int  # the current stream of the device, as a number; 0 is the default stream
    kind: str  # RESULT, RESIZED or EXISTING
    op: Any  # the operator that allocated it, or in whose arguments it was met; may be None
    location: RawLocation | None  # the line of the program, see SourceLocation
    note: Any  # set and used by the observer
    ref: weakref.ref[Storage]


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage, with the allocation that ends when the storage dies."""

    __slots__ = ("allocation", "key")
    allocation: Allocation
    key: int


class Observer:
    """Base class of observers of a run: override the methods for the events of interest.

    Methods are called on the thread that runs the operator. Operators that they call are not
    observed.

    Attributes:
        modules: while observing, the modules that are running: `modules.name` is the innermost
            one, or in a backward pass the one whose gradient is computed.
        sees_storages: whether storages are observed; if not, operators take less time.
        last_first: operators whose results are allocated from the last to the first.
    """

    modules: RunningModules | None = None
    sees_storages = True
    last_first: frozenset[Any] = frozenset()

    _machine: Any = None  # the fake devices of the mode

    def __init__(self) -> None:
        self._refs: dict[int, _Ref] = {}  # live storages, by identity
        self._dead: deque[_Ref] = deque()  # dead storages, in the order of their deaths
        self._streams: dict[Any, int] = {0: 0}  # torch's stream id -> small number

    # Notifications.

    def call_operator(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator: call ``run(func, types, args, kwargs)``, and return its result."""
        return run(func, types, args, kwargs)

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operator was run. Arguments and results are fakes, whose metadata can be read.

        `result` is NotImplemented if a tensor class of another library decomposes the call; its
        parts are reported next.
        """

    def storage_born(self, allocation: Allocation) -> None:
        """Memory was allocated."""

    def storage_freed(self, allocation: Allocation) -> None:
        """Memory was freed; called before the next allocation, or by `settle`."""

    def storage_used(self, allocation: Allocation, stream: int) -> None:
        """Work on another stream uses memory: ``tensor.record_stream(stream)``."""

    def storage_resized(self, storage: Storage) -> None:
        """A storage was resized by ``tensor.untyped_storage().resize_()``, which calls no operator.
        By default this reports the new memory as allocated, and the old memory as freed.
        """
        if self.allocation_of(storage) is not None:
            self.look_at(storage, torch.ops.aten.resize_.default)

    def event_recorded(self, event: Any, stream: int) -> None:
        """A stream of the fake device records an event."""

    def event_awaited(self, event: Any, stream: int) -> None:
        """Work submitted to a stream from here on waits for an event."""

    def module_entered(self, name: str, module: nn.Module) -> None:
        """The forward of a module begins; `name` is its full name, "" of the root."""

    def module_left(self, name: str, module: nn.Module) -> None:
        """The forward of a module ends, or raises."""

    # Queries.

    def allocation_of(self, storage: Storage | None) -> Allocation | None:
        """The current memory of a storage (see `storage_of`), if it was reported."""
        ref = self._refs.get(id(storage))
        return None if ref is None or ref() is None else ref.allocation

    def add_existing(self, storage: Storage, note: Any = None) -> Allocation:
        """Report the memory of a storage that existed before, unless it was reported already."""
        return self.allocation_of(storage) or self._add(storage, None, EXISTING, note)

    def alive(self) -> list[Allocation]:
        """The reported allocations that are alive, in the order of allocation."""
        self.settle()
        return list(map(attrgetter("allocation"), self._refs.values()))

    def settle(self) -> None:
        """Report the memory freed since the last allocation."""
        while self._dead:
            self._free(self._dead.popleft())

    def forget(self) -> list[Allocation]:
        """Return the live allocations, and stop observing them."""
        allocations = self.alive()
        self._refs.clear()
        self._dead = deque()  # callbacks of the old references append to the old deque
        return allocations

    def current_stream(self, index: int | None = None) -> int:
        """The number of the current stream of a fake device, by default of the current device."""
        machine = self._machine
        if machine is None:
            return 0
        stream = machine.streams.get(machine.current if index is None else index)
        return 0 if stream is None else self.number_of(stream.stream_id)

    def number_of(self, stream: Any) -> int:
        """A small number for a stream; 0 is the default stream."""
        return self._streams.setdefault(stream, len(self._streams))

    def look_at(self, storage: Storage, op: Any, given: Any = ()) -> None:
        """Report the storage of an operator's result, if it is new or was resized.

        Args:
            storage: the storage of a result.
            op: the operator.
            given: the arguments of the operator, whose storages existed before.
        """
        ref = self._refs.get(id(storage))
        if ref is None or ref() is None:
            self._add(storage, op, EXISTING if _is_among(storage, given) else RESULT)
        elif ref.allocation.num_bytes != storage.num_bytes:
            self._add(storage, op, RESIZED, ref.allocation.note)  # before the old memory is freed
            self._free(ref)

    @property
    def gpu(self) -> CudaProfile | None:
        """While observing, the profile of the mode's fake CUDA devices, if it has any."""
        gpus = None if self._machine is None else self._machine.gpu
        return None if gpus is None else gpus.answer(lambda profile: profile)

    def of_each_gpu(self, question: Callable[[CudaProfile], T]) -> dict[CudaProfile, T]:
        """The answers to a question about the profile of the mode's fake CUDA devices, the first,
        and about profiles for which the run has been the same so far; empty without any.
        """
        gpus = None if self._machine is None else self._machine.gpu
        return {} if gpus is None else gpus.answers(question)

    # Implementation.

    def _run(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = run(func, types, args, kwargs)
        if not self.sees_storages:
            pass
        elif isinstance(result, FakeTensor):
            self.look_at(result._fake_storage, func, (*args, *kwargs.values()))
        elif isinstance(result, (list, tuple)):
            given = _Storages((*args, *kwargs.values()))  # found once for all items
            for item in reversed(result) if func in self.last_first else result:
                if isinstance(item, FakeTensor):
                    self.look_at(item._fake_storage, func, given)
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
        if self._refs.get(ref.key) is ref:  # a resize has put a newer reference there
            del self._refs[ref.key]
        del ref.allocation.ref  # with its callback, so that the memory is freed only once
        self.storage_freed(ref.allocation)


class _Storages:
    """The storages of the fakes among arguments, which keep the storages alive."""

    def __init__(self, values: Any) -> None:
        self._values = values

    @cached_property
    def ids(self) -> set[int]:
        lists = (v if isinstance(v, (list, tuple)) else (v,) for v in self._values)
        return {id(t._fake_storage) for each in lists for t in each if isinstance(t, FakeTensor)}


def _is_among(storage: Storage, values: Any) -> bool:
    """Whether a fake among `values`, or in lists among them, has this storage."""
    if isinstance(values, _Storages):
        return id(storage) in values.ids
    for value in values:
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, FakeTensor) and each._fake_storage is storage:
                return True
    return False
