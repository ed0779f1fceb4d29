"""The context in which an observer is notified of a run, and the dispatch of operators in it.

Input: an observer, in a mode. Output: calls of its methods. Invariant: operators and results are
those of a run without an observer; torch's FAKE slot is restored afterwards.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from torchfake._core import modes
from torchfake._core.storage import Storage
from torchfake._dispatch import DeferredDispatch, FakeDispatch, decompose, has_own_kernel
from torchfake._torch import dispatcher, kernels
from torchfake._torch.contexts import Restoring
from torchfake.observe.modules import RunningModules
from torchfake.observe.observer import Observer


class _ObservedDispatch(FakeDispatch):
    """The mode in torch's FAKE slot while there are observers: dispatches, and notifies them."""

    def __init__(self, mode: Any, observers: tuple[Observer, ...]) -> None:
        super().__init__()
        self.is_recording = mode.is_recording
        self.mode, self.observers = mode, observers  # the innermost is last
        is_ours = type(mode) in (FakeDispatch, DeferredDispatch)  # False for a daemon thread's mode
        self._run = partial(type(mode).__torch_dispatch__, self if is_ours else mode)
        for observer in observers:
            self._run = partial(observer._run, self._run)
            if type(observer).call_operator is not Observer.call_operator:
                self._run = partial(observer.call_operator, self._run)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_composite = hasattr(func, "_schema") and kernels.is_decomposed_in_cpp(func)
        if is_composite and not has_own_kernel(func, args):
            with self.active():  # C++ leaves it whole in inference mode, and below wrapper classes
                return decompose(self, func, args, kwargs)
        return self._run(func, types, args, kwargs)

    # Notifications from streams, tensors and storages: _patches/accelerators/streams and _tensor.

    def record_stream(self, storage: Storage, stream: Any) -> None:
        """A tensor is used on another stream."""
        for observer in self.observers:
            ref = observer._refs.get(id(storage))
            if ref is not None and ref() is not None:
                observer.storage_used(ref.allocation, observer.number_of(stream.stream_id))

    def storage_resized(self, storage: Storage) -> None:
        """A storage was resized."""
        for observer in self.observers:
            observer.storage_resized(storage)

    def record(self, event: Any, stream: Any) -> None:
        """A stream (None: the current one) records an event."""
        for observer in self.observers:
            observer.event_recorded(event, _number(observer, stream))

    def wait(self, stream: Any, event: Any) -> None:
        """A stream (None: the current one) waits for an event."""
        for observer in self.observers:
            observer.event_awaited(event, _number(observer, stream))

    def wait_stream(self, stream: Any, other: Any) -> None:
        """A stream waits for all work submitted to another stream so far."""
        event = object()
        self.record(event, other)
        self.wait(stream, event)


def _number(observer: Observer, stream: Any) -> int:
    return observer.current_stream() if stream is None else observer.number_of(stream.stream_id)


class observing(Restoring):
    """Context in which an observer is notified of what this thread runs in the innermost mode.

    Contexts may be nested: each observer is notified of everything. Work in other threads, and in
    modes that are entered inside the context, is not observed.

    Args:
        observer: the observer, which is also the target of ``as``.
        modules: the modules whose entry and exit are observed: a module, which has hooks for the
            duration of this context, or :class:`RunningModules`.

    Raises:
        RuntimeError: outside of all modes.
    """

    def __init__(
        self, observer: Observer, modules: nn.Module | RunningModules | None = None
    ) -> None:
        self._observer, self._given = observer, modules
        self._modules: RunningModules | None = None
        self._slot: dispatcher.in_fake_slot | None = None
        self._before: tuple[Any, Any] | None = None  # the machine, and its former `order`

    def change(self) -> Observer:
        observer, state = self._observer, modes.current()
        mode = dispatcher.current_fake_mode()
        if state is None or mode is None:
            raise RuntimeError("observing() observes what runs in a mode: enter fake_mode() before")
        given = self._given
        self._modules = RunningModules(given) if isinstance(given, nn.Module) else given
        if self._modules is not None:
            self._modules.observers.append(observer)
            observer.modules = self._modules
        machine = observer._machine = state.accelerator
        observed: tuple[Observer, ...] = ()
        if isinstance(mode, _ObservedDispatch):
            mode, observed = mode.mode, mode.observers
        dispatch = _ObservedDispatch(mode, (*observed, observer))
        if machine is not None:
            self._before = machine, machine.order
            machine.order = dispatch
        self._slot = dispatcher.in_fake_slot(dispatch)
        self._slot.change()
        return observer

    def restore(self) -> None:
        if self._slot is not None:
            self._slot.restore()
        if self._before is not None:
            machine, order = self._before
            machine.order = order
        if self._modules is not None:
            if self._observer in self._modules.observers:
                self._modules.observers.remove(self._observer)
            if self._modules is not self._given:
                self._modules.remove()
        self._observer.settle()


def observers() -> tuple[Observer, ...]:
    """The observers of this thread, the innermost last."""
    mode = dispatcher.current_fake_mode()
    return mode.observers if isinstance(mode, _ObservedDispatch) else ()
