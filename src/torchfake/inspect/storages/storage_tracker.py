"""Records when each storage of a run is allocated and freed, and what it is used for.

Input: the events of a run that :mod:`torchfake.observe` reports. Output: a :class:`Lifetime` for
each allocation, and all of them as :class:`Lifetimes`. Invariant: a storage is alive for exactly as
long as the memory that it stands for would be; the tracker keeps no storage alive.

Allocations and frees share one event counter, so any two of them are ordered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchfake._progress import notice
from torchfake.inspect.storages.bounds_check import LOOKUP, check_indices
from torchfake.inspect.storages.engine_writes import EngineWrite, engine_write
from torchfake.inspect.storages.kernel_memory import (
    MADE_LAST_FIRST,
    is_product,
    kernel_bytes,
    may_need_scratch,
)
from torchfake.inspect.storages.lifetimes import Lifetime, Lifetimes, columns_of
from torchfake.inspect.storages.scratch import ScratchCall
from torchfake.inspect.timing.commands import CommandRecorder, Place
from torchfake.observe import (
    Allocation,
    FakeTensor,
    Observer,
    RunningModules,
    SourceLocation,
    Storage,
    held_tensors,
    is_called_by_engine,
    observing,
    running_sequence_number,
    storage_of,
)

NamedTensors = Iterable[tuple[str, torch.Tensor]]
"""Tensors, each after the full name of the module that it belongs to."""

MANY_OPERATORS = 5_000
"""Operators that a module runs without calling another one, of which the user is told."""


class StorageTracker(Observer):
    """Observes the allocations of a step, and the commands that it puts on streams.

    Args:
        modules: tells which module of the step is running.
        commands: records the commands put on streams; None if they are not needed.
        has_workspace: whether cuBLAS workspaces are counted as held throughout the step.
    """

    modules: RunningModules
    last_first = MADE_LAST_FIRST

    def __init__(
        self,
        modules: RunningModules,
        commands: CommandRecorder | None = None,
        *,
        has_workspace: bool = False,
    ) -> None:
        super().__init__()
        self.modules = modules
        self.commands = commands
        if commands is not None:
            commands.running = modules
        self.lives: list[Lifetime] = []
        self.scratch: list[ScratchCall] = []  # calls whose scratch memory depends on the GPU
        self.clock = 0  # the number of events so far
        self.end = 0  # the clock at the end of the step
        self.phase = "start"  # the phase that is running
        self.loss: str | None = None  # what the backward pass begins with, as text
        self.optimizer: str | None = None  # the name of the class of the optimizer
        self._has_workspace = has_workspace
        self._entered = self._num_since = 0  # modules that were entered, operators since then
        self.ops: set[Any] = set()  # all operators that ran
        self._recomputed: list[Lifetime] = []  # allocated by the recomputation that is running
        self._write: EngineWrite | None = None  # by the operator that ran last
        self.survivors: list[Allocation] = []  # allocations that are alive after `finish`

    def active(self) -> observing:
        """Context in which the tracker observes."""
        if self.commands is not None:
            self.commands.resume()
        return observing(self)

    def call_operator(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self._recomputed and not torch.is_grad_enabled():
            self._end_recomputation()
        if self._write is not None:
            self.settle()
            self._write = None
        if func is LOOKUP:
            check_indices(args)
        return run(func, types, args, kwargs)

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.ops.add(func)
        self._count_in_module()
        if args and isinstance(result, FakeTensor) and is_called_by_engine():
            old, new = storage_of(args[0]), storage_of(result)
            memory = self.allocation_of(old), self.allocation_of(new)
            self._write = engine_write(func, args, *memory, running_sequence_number())
        if may_need_scratch(func) and args and isinstance(args[0], FakeTensor) and args[0].is_cuda:
            self._note_kernel(func, args, kwargs)
        if self.commands is not None:
            self.commands.launch(func, args, kwargs, result, self._place)

    def _count_in_module(self) -> None:
        """Count the operators since a module was entered, and say where they are many."""
        modules = self.modules
        if modules.num_entered != self._entered:
            self._entered, self._num_since = modules.num_entered, 0
        self._num_since += 1
        if self._num_since == MANY_OPERATORS and modules.stack:
            name = modules.stack[-1] or "the model"
            where = None if not self.lives else self.lives[-1].location
            line = f" ({SourceLocation(*where)})" if where else ""
            notice(
                f"{name} has run {MANY_OPERATORS:,} operators by itself{line}: a loop in Python, "
                "such as a scan over tokens without its kernel. Each operator is run on fakes, "
                "which takes time; shorter sequences take less"
            )

    def _place(self) -> Place:
        """The place of a command issued now: its stream, phase and module."""
        is_again = self.phase == "backward" and self.modules.is_recomputing
        return Place(self.current_stream(), self.phase, self.modules.name, is_again)

    def event_recorded(self, event: Any, stream: int) -> None:
        if self.commands is not None:
            self.commands.record(event, stream)

    def event_awaited(self, event: Any, stream: int) -> None:
        if self.commands is not None:
            self.commands.wait(stream, event)

    def _note_kernel(self, func: Any, args: Any, kwargs: Any) -> None:
        """Record the scratch memory that the kernel of an operator has allocated and freed."""
        if self._has_workspace and is_product(func):
            return
        sizes = self.of_each_gpu(lambda gpu: _without_zeros(kernel_bytes(func, args, kwargs, gpu)))
        if not any(sizes.values()):
            return
        self.settle()
        device = args[0].device
        stream = self.current_stream(device.index)
        if len({*sizes.values()}) > 1:
            life = self._life(0, device, stream, func)
            life.category = "temporaries"
            self.scratch.append(ScratchCall(life, sizes))
        lives = [self._begin(size, device, stream, func) for size in next(iter(sizes.values()))]
        for life in lives:
            life.category = "temporaries"
            life.freed_at, self.clock = self.clock, self.clock + 1

    def storage_born(self, allocation: Allocation) -> None:
        before = allocation.note  # the storage's previous lifetime, if the storage was resized
        life = self._begin(
            allocation.num_bytes, allocation.device, allocation.stream, allocation.op
        )
        life.location = allocation.location
        life.category = "" if before is None else before.category
        allocation.note = life

    def _begin(self, num_bytes: int, device: torch.device, stream: int, op: Any) -> Lifetime:
        life = self._life(num_bytes, device, stream, op)
        self.clock += 1
        self.lives.append(life)
        if self.phase == "backward" and self.modules.is_recomputing:
            self._recomputed.append(life)
        return life

    def _life(self, num_bytes: int, device: torch.device, stream: int, op: Any) -> Lifetime:
        """The lifetime of an allocation at this event."""
        life = Lifetime()
        life.num_bytes, life.device, life.stream, life.used_on = num_bytes, device, stream, ()
        life.allocated_at, life.freed_at = self.clock, -1
        life.category, life.phase, life.op = "", self.phase, op
        life.module, life.location = self.modules.name, None
        life.node = running_sequence_number()
        return life

    def storage_freed(self, allocation: Allocation) -> None:
        life = allocation.note
        if self._write is not None and life is self._write.continued:
            self._continue(life, self._write.result)
        else:
            life.freed_at, self.clock = self.clock, self.clock + 1

    def _continue(self, life: Lifetime, result: Allocation) -> None:
        """Let a lifetime go on as that of a result, which eager mode writes to the same memory."""
        self._write = None
        at = len(self.lives) - 1  # the result is among the last
        while self.lives[at] is not result.note:
            at -= 1
        del self.lives[at]
        result.note = life

    def storage_used(self, allocation: Allocation, stream: int) -> None:
        life = allocation.note
        if stream not in (life.stream, *life.used_on):
            life.used_on = (*life.used_on, stream)

    def _end_recomputation(self) -> None:
        """Categorize what the recomputation of a checkpointed forward left alive as activations."""
        self.settle()
        for life in self._recomputed:
            if life.freed_at < 0:
                life.category = life.category or "activations"
        self._recomputed.clear()

    def register(self, tensors: NamedTensors, category: str) -> None:
        """Record existing tensors; those without a category get `category`."""
        for module, storage in _storages(tensors):
            life = self.add_existing(storage).note
            if not life.category:
                life.category, life.module = category, module

    def recategorize(self, tensors: NamedTensors, category: str) -> None:
        """Give tensors that the step has created a category, and the modules named with them."""
        for module, storage in _storages(tensors):
            known = self.allocation_of(storage)
            if known is not None and known.note.category in ("", "activations"):
                known.note.category, known.note.module = category, module

    def register_survivors(self, before: StorageTracker) -> None:
        """Record the storages that an earlier run, tracked by `before`, has left alive."""
        for survivor in before.survivors:
            storage = survivor.ref()
            if storage is not None and self.allocation_of(storage) is None:
                life = self.add_existing(storage).note
                life.category, life.module = survivor.note.category, survivor.note.module

    def end_forward(self) -> None:
        """Categorize what the forward pass allocated and left alive as activations."""
        for allocation in self.alive():
            if not allocation.note.category:
                allocation.note.category = "activations"

    def end_pass(self) -> None:
        """Mark the end of a pass of generation, whose result the host reads."""
        if self.commands is not None:
            self.commands.end_pass(self._place())

    def end_step(self) -> None:
        """Mark the end of the step: storages freed later count as alive at the end."""
        self.settle()
        self.end = self.clock

    def finish(self) -> Lifetimes:
        """Stop tracking, and return the lifetimes of the step's storages as columns."""
        self.survivors = self.forget()
        of_step = []
        for life in self.lives:
            if not 0 <= life.freed_at < self.end:
                life.freed_at = self.end
            if life.allocated_at < self.end:
                of_step.append(life)
        lives = columns_of(of_step, self.end)
        if not self.scratch:
            return lives
        scratch = (call for call in self.scratch if call.life.allocated_at < self.end)
        return lives._replace(scratch=tuple(scratch))


def _without_zeros(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(size for size in sizes if size)


def _storages(tensors: NamedTensors) -> Iterator[tuple[str, Storage]]:
    """The storages of fakes, including fakes that tensors of other classes hold."""
    for module, tensor in tensors:
        for held in held_tensors(tensor):
            storage = storage_of(held)
            if storage is not None:
                yield module, storage
