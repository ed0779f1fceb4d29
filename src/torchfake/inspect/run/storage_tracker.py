"""Records when each storage of a run is allocated and freed, and what it is used for.

Input: operators on fakes, while a :class:`StorageTracker` is the active dispatch of the mode.
Output: a :class:`Lifetime` for each storage, then :class:`Lifetimes`. Invariant: a storage is alive
for exactly as long as the memory that it stands for would be; nothing here keeps one alive.

A storage that is new in the result of an operator was allocated by it; a weakref callback records
when it is freed. Allocations and frees share one event counter, so that any two are ordered. The
callback is in C, and what it records is read before anything else is: Python drops a
KeyboardInterrupt that is raised in a callback, and what that had not done would be missing.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from torchfake._core import modes
from torchfake._core.storage import Storage
from torchfake._dispatch import FakeDispatch, dispatch
from torchfake._tensor.copies import held_tensors
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch.contexts import Restoring, Setting, Together
from torchfake.inspect.run.bounds_check import check_indices
from torchfake.inspect.run.kernel_memory import MADE_LAST_FIRST, is_product, kernel_bytes
from torchfake.inspect.run.lifetimes import Lifetime, Lifetimes, columns_of
from torchfake.inspect.run.module_tracker import ModuleTracker
from torchfake.inspect.timing.commands import Command, CommandRecorder, Place

NamedTensors = Iterable[tuple[str, torch.Tensor]]
"""Tensors, each after the full name of the module that it belongs to."""


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows the lifetime that ends with it."""

    __slots__ = ("key", "life")
    key: int
    life: Lifetime


class StorageTracker(FakeDispatch):
    """A dispatch of operators that also records allocations, and what is put on streams.

    Args:
        modules: of the step.
        commands: records what is put on streams.
        has_workspace: products on CUDA use a workspace that is accounted for the whole step.
    """

    def __init__(
        self,
        modules: ModuleTracker,
        commands: CommandRecorder | None = None,
        *,
        has_workspace: bool = False,
    ) -> None:
        super().__init__()
        self.modules = modules
        self.commands = commands
        self.lives: list[Lifetime] = []
        self.clock = 0  # events so far
        self.end = 0  # the clock at the end of the step
        self.phase = "start"
        self._has_workspace = has_workspace
        self.ops: set[Any] = set()  # all operators that ran
        self._refs: dict[int, _Ref] = {}  # of storages that are alive, by identity
        self._dead_refs: deque[_Ref] = deque()  # in the order in which they died
        self._streams: dict[int, int] = {0: 0}  # small numbers, by the number that torch has
        self._recomputed: list[Lifetime] = []  # allocated by the recomputation that is running
        self.survivors: list[_Ref] = []  # weak references to what is alive after `finish`

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._recomputed and not torch.is_grad_enabled():
            self._end_recomputation()
        check_indices(func, args)
        result = dispatch(self, func, types, args, kwargs or {})
        if isinstance(result, FakeTensor):
            self._observe(result._fake_storage, func)
        elif isinstance(result, (list, tuple)):
            for item in reversed(result) if func in MADE_LAST_FIRST else result:
                if isinstance(item, FakeTensor):
                    self._observe(item._fake_storage, func)
        self.ops.add(func)
        state = modes.current()
        if state is not None and state.accelerator is not None:
            self._observe_kernel(func, args, kwargs or {}, state.accelerator)
        if self.commands is not None:
            self.commands.launch(func, args, kwargs or {}, result, self._place)
        return result

    @property
    def recorded_commands(self) -> tuple[Command, ...]:
        """What was put on streams so far."""
        return () if self.commands is None else tuple(self.commands.commands)

    def _place(self) -> Place:
        """Where a command comes from, and where it goes."""
        is_again = self.phase == "backward" and self.modules.is_recomputing
        return Place(self._launch_stream(), self.phase, self.modules.name, is_again)

    def _launch_stream(self) -> int:
        state = modes.current()
        if state is None or state.accelerator is None:
            return 0
        stream = state.accelerator.streams.get(state.accelerator.current)
        return 0 if stream is None else self._number_of(stream)

    def active(self) -> Restoring:
        """Context: this sees what is dispatched, and the order of work on streams."""
        state = modes.current()
        machine = None if state is None else state.accelerator
        if self.commands is None or machine is None:
            return super().active()
        self.commands.number_of = self._number_of
        self.commands.current_stream = self._launch_stream
        set_order = partial(setattr, machine, "order")
        return Together(Setting(lambda: machine.order, set_order, self.commands), super().active())

    def _observe_kernel(self, func: Any, args: Any, kwargs: Any, accelerator: Any) -> None:
        """Record what the kernel of an operator has allocated and freed."""
        gpu = accelerator.profile
        first = args[0] if args else None
        if gpu is None or not isinstance(first, FakeTensor) or first.device.type != "cuda":
            return
        if self._has_workspace and is_product(func):
            return
        sizes = [size for size in kernel_bytes(func, args, kwargs, gpu) if size]
        storages = [Storage(size, first.device, func, None) for size in sizes]
        for storage in storages:
            self._record_allocation(storage, func, "temporaries").location = None
        for storage in storages:
            self._record_free(self._refs[id(storage)])

    def _observe(self, storage: Storage, op: Any) -> None:
        """Record the storage of a result if it is new or was resized."""
        ref = self._ref_to(storage)
        if ref is None:
            self._record_allocation(storage, op, "")
        elif ref.life.num_bytes != storage.num_bytes:  # allocates new memory, then frees the old
            self._record_allocation(storage, op, ref.life.category)
            self._record_free(ref)

    def _ref_to(self, storage: Storage) -> _Ref | None:
        """The reference to a storage, if it has been recorded."""
        self._record_frees()
        return self._refs.get(id(storage))

    def _end_recomputation(self) -> None:
        """What the recomputation of a checkpointed forward has left alive is activations."""
        self._record_frees()
        for life in self._recomputed:
            if life.freed_at < 0:
                life.category = life.category or "activations"
        self._recomputed.clear()

    def _record_allocation(self, storage: Storage, op: Any, category: str) -> Lifetime:
        self._record_frees()
        life = Lifetime()
        life.num_bytes, life.device = storage.num_bytes, storage.device
        life.allocated_at, life.freed_at, self.clock = self.clock, -1, self.clock + 1
        life.category, life.phase, life.op = category, self.phase, op
        life.module, life.location = self.modules.name, storage.location
        life.stream, life.used_on = self._current_stream(storage.device), ()
        life.ref = ref = _Ref(storage, self._dead_refs.append)
        ref.key, ref.life = id(storage), life
        self._refs[id(storage)] = ref
        self.lives.append(life)
        if self.phase == "backward" and self.modules.is_recomputing:
            self._recomputed.append(life)
        return life

    def _current_stream(self, device: torch.device) -> int:
        """The stream of `device` that work is put on."""
        state = modes.current()
        if device.index is None or state is None or state.accelerator is None:
            return 0
        stream = state.accelerator.streams.get(device.index)
        return 0 if stream is None else self._number_of(stream)

    def _number_of(self, stream: Any) -> int:
        return self._streams.setdefault(stream.stream_id, len(self._streams))

    def record_stream(self, storage: Storage, stream: Any) -> None:
        """Record that work on another stream uses a storage."""
        ref, number = self._ref_to(storage), self._number_of(stream)
        if ref is not None and number not in (ref.life.stream, *ref.life.used_on):
            ref.life.used_on = (*ref.life.used_on, number)

    def _record_frees(self) -> None:
        while self._dead_refs:
            self._record_free(self._dead_refs.popleft())

    def _record_free(self, ref: _Ref) -> None:
        if ref.life.freed_at < 0:  # or its memory was freed when the storage was resized
            ref.life.freed_at, self.clock = self.clock, self.clock + 1
        if self._refs.get(ref.key) is ref:
            del self._refs[ref.key]

    def register(self, tensors: NamedTensors, category: str) -> None:
        """Record existing tensors under `category`, unless they have one."""
        for module, storage in _storages(tensors):
            ref = self._ref_to(storage)
            life = self._record_allocation(storage, None, category) if ref is None else ref.life
            if not life.category or ref is None:
                life.category, life.module = category, module

    def recategorize(self, tensors: NamedTensors, category: str) -> None:
        """Tensors that the step has made are of `category`, and of the modules named."""
        for module, storage in _storages(tensors):
            ref = self._ref_to(storage)
            if ref is not None and ref.life.category in ("", "activations"):
                ref.life.category, ref.life.module = category, module

    def register_survivors(self, before: StorageTracker) -> None:
        """Record what a tracker of an earlier run has left alive."""
        for ref in before.survivors:
            storage = ref()
            if storage is not None and self._ref_to(storage) is None:
                life = self._record_allocation(storage, None, ref.life.category)
                life.module = ref.life.module

    def begin_phase(self, phase: str) -> None:
        """What is allocated from here on is of `phase`."""
        self.phase = phase

    def end_forward(self) -> None:
        """What the forward pass has allocated and is still alive is activations."""
        self._record_frees()
        for ref in self._refs.values():
            if not ref.life.category:
                ref.life.category = "activations"

    def end_step(self) -> None:
        """What is freed from here on was alive at the end of the step."""
        self._record_frees()
        self.end = self.clock

    def finish(self) -> Lifetimes:
        """Stop tracking; the lifetimes of the storages of the step, as columns."""
        self._record_frees()
        self.survivors = list(self._refs.values())
        self._refs.clear()
        for life in self.lives:
            del life.ref
            if not 0 <= life.freed_at < self.end:
                life.freed_at = self.end
        return columns_of([life for life in self.lives if life.allocated_at < self.end], self.end)


def _storages(tensors: NamedTensors) -> Iterator[tuple[str, Storage]]:
    """The storages of fakes, and of those that tensors of other classes hold."""
    for module, tensor in tensors:
        for held in held_tensors(tensor):
            if isinstance(held, FakeTensor):
                yield module, held._fake_storage
