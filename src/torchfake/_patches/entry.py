"""Entry and exit of modes: torch is restored wherever an interrupt arrives.

Input: a mode object, and the state of its new entry. Output: torch with the mode on, or as it was
before. Invariant: the modes of a thread are left in the reverse order of their entries; a mode that
nothing can leave any more (its ``with`` statement was interrupted before ``__exit__`` began, or its
object was dropped) has ended.

The changes that a mode makes follow from the list of active modes, and from what each mode found on
entry. So one function, :func:`end`, undoes the changes. It may be interrupted anywhere, and is
called again: by the interrupted entry or exit, by a weak reference when nothing can leave the mode
any more (see ``_torch/contexts``), and by the next entry or exit of any mode.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torchfake._core import living, modes
from torchfake._core.modes import ModeState
from torchfake._patches.accelerators import missing_devices
from torchfake._patches.install import update_patches
from torchfake._random import lazy_generators
from torchfake._recording import generator_sync
from torchfake._tensor import torch_function
from torchfake._torch import contexts, dispatcher, versions
from torchfake._torch.compiler import frames, scripts


class ModeExit:
    """``__exit__`` of a mode: each lookup makes an object, held only by the ``with`` statement."""

    def __get__(self, mode: Any, cls: Any = None) -> Callable[..., None]:
        if mode is None:  # looked up on the class, as contextlib does
            return leave
        exit_ = partial(leave, mode)
        modes.thread.latest_exit = weakref.ref(exit_)
        return exit_


def enter(mode: Any, state: ModeState, dispatch: Any) -> None:
    """Turn a mode on: from here on, factories are dispatched to `dispatch`."""
    versions.warn_of_new_torch()
    _end_abandoned()
    state.mode = weakref.ref(mode)
    state.dispatch = dispatch
    exit_ = modes.thread.latest_exit and modes.thread.latest_exit()
    modes.thread.latest_exit = None
    state.is_owned_by_with = exit_ is not None and exit_.args[0] is mode
    owner = exit_ if state.is_owned_by_with else mode
    state.owner = contexts.watch(owner, partial(_end_after_its_owner, state))
    del exit_, owner
    state.slot_before = dispatcher.current_fake_mode()
    state.lift_before = dispatcher.only_lift_cpu()
    state.optimizes_before = scripts.optimizes()
    try:
        modes.thread.modes.append(state)
        modes.on_any_thread.add(state)
        state.sign = living.take()
        update_patches()
        dispatcher.set_only_lift_cpu(True)
        scripts.set_optimizing(False)
        dispatcher.set_fake_mode(dispatch)
        state.frame_callback_before = frames.swap_frame_callback(None)
        if modes.thread.modes[0] is state:
            modes.thread.draw_position = None
        else:
            _place_draws(state, modes.thread.modes[-2])
        torch_function.update_override()
    except BaseException:
        end(state)
        state.owner = None
        raise


def leave(mode: Any, error_type: Any = None, error: Any = None, trace: Any = None) -> None:
    """Leave `mode`, the innermost mode of this thread.

    Raises:
        RuntimeError: if `mode` is not the innermost one, unless an error is in flight. Nothing has
            changed then.
    """
    state = None
    try:
        _end_abandoned()
        entries = modes.thread.modes
        if entries and entries[-1].mode() is mode:
            state, refusal = entries[-1], ""
        else:
            state, refusal = _entry_to_leave(mode, has_error=error is not None)
        if state is not None:
            end(state)
            if not modes.is_recording():
                generator_sync.synchronize_all()
            elif not state.mark:
                lazy_generators.position().move_global()
            _end_abandoned()
            state.owner = None
        if error is not None and not modes.thread.modes:
            missing_devices.name_the_option(error)
    except BaseException:
        interrupted = state or next((s for s in _entries_of(mode)[::-1]), None)
        if interrupted is not None:
            end(interrupted)
        _forget_draws()
        raise
    if refusal:
        raise RuntimeError(refusal)


def _place_draws(state: ModeState, outer: ModeState) -> None:
    """Continue the random sequence of the enclosing mode. Plain modes draw from a lazy generator,
    deferred modes from the global one: if the kind changes, one continues at the other's position.
    """
    if state.mark and not outer.mark:
        lazy_generators.position().move_global()
    elif outer.mark and not state.mark:
        generator_sync.synchronize_all()


class without_modes(contexts.Restoring):
    """Context: no mode of torchfake is on, on this thread. A mode entered inside is the first."""

    _before: tuple[Any, ...] | None = None

    def change(self) -> None:
        own, slot, lift = modes.thread, dispatcher.slot_state(), dispatcher.only_lift_cpu()
        optimizes = scripts.optimizes()
        override = torch_function.override_state()
        self._before = own.modes, own.draw_position, own.answering, slot, lift, optimizes, override
        outside = own.modes[0].optimizes_before if own.modes else optimizes
        own.modes, own.answering = [], []
        dispatcher.set_fake_mode(None)
        dispatcher.set_only_lift_cpu(False)
        scripts.set_optimizing(outside)
        torch_function.update_override()

    def restore(self) -> None:
        if self._before is not None:
            own = modes.thread
            own.modes, own.draw_position, own.answering, slot, lift, optimizes, override = (
                self._before
            )
            scripts.set_optimizing(optimizes)
            dispatcher.set_only_lift_cpu(lift)
            dispatcher.put_back(slot)
            torch_function.put_back(override)


class Entered(contexts.Restoring):
    """Context that enters a mode, as a part of a context that consists of several."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._entry: ModeState | None = None

    def change(self) -> None:
        self._mode.__enter__()

    def restore(self) -> None:
        # Kept: when restore is called again, `end` may have removed the entry from the list.
        self._entry = self._entry or next(iter(_entries_of(self._mode)), None)
        if self._entry is not None:
            end(self._entry)
            self._entry.owner = None


def _entries_of(mode: Any) -> list[ModeState]:
    return [state for state in modes.thread.modes if state.mode() is mode]


def _entry_to_leave(mode: Any, *, has_error: bool) -> tuple[ModeState | None, str]:
    """Return the entry to leave if `mode` is not the innermost one, or None to leave nothing; and
    the message of an error to raise, or an empty string.
    """
    entries, own = modes.thread.modes, _entries_of(mode)
    name = type(mode).__name__
    if not own:
        return None, (
            f"{name} was exited, but is not active on this thread: __exit__ must follow an "
            "__enter__ on the same thread"
        )
    inner = entries[entries.index(own[-1]) + 1 :]
    if inner and not has_error:
        return None, (
            f"{name} was left before {_name_of(inner[-1])}, which was entered after it and is "
            "still on. Leave modes in reverse order; a generator or coroutine that is suspended "
            "inside a mode has to be closed before"
        )
    # An error leaves the inner modes too. If a suspended generator holds one of them, that mode and
    # this one stay on: raising here would hide the error.
    return (None if any(state.is_owned_by_with for state in inner) else own[-1]), ""


def _name_of(state: ModeState) -> str:
    return type(state.mode()).__name__ if state.mode() is not None else "a mode"


def end(state: ModeState) -> None:
    """Restore torch as it was when `state` was entered. May be called again after an interrupt."""
    entries = modes.thread.modes
    if state in entries:
        ended = entries[entries.index(state) :]
        modes.on_any_thread.difference_update(ended)
        for each in ended:
            if each.daemons:
                modes.end_in_daemons(each)
        dispatcher.set_fake_mode(state.slot_before)
        dispatcher.set_only_lift_cpu(state.lift_before)
        scripts.set_optimizing(state.optimizes_before)
        frames.swap_frame_callback(state.frame_callback_before)
        del entries[entries.index(state) :]
        for other in ended[1:]:
            other.owner = other.sign = None
    modes.thread.initializer_frame = None
    torch_function.update_override()
    modes.on_any_thread.discard(state)
    update_patches()
    state.sign = None


def _end_abandoned() -> None:
    """End the innermost modes of this thread that nothing can leave any more."""
    entries = modes.thread.modes
    if not entries or entries[-1].owner() is not None:
        if not entries and modes.thread.drawn_generators:
            _forget_draws()
        return
    while entries and entries[-1].owner() is None:
        end(entries[-1])
    _forget_draws()


def _end_after_its_owner(state: ModeState) -> None:
    """End `state`, which nothing can leave any more, if it is on and this is its thread; strike it
    off if its thread has ended. A live thread ends it at its next entry or exit.
    """
    if state.thread_id == threading.get_ident():
        if state in modes.thread.modes or state in modes.on_any_thread:
            _end_abandoned()
            update_patches()
    elif state.thread_id not in {thread.ident for thread in threading.enumerate()}:
        modes.on_any_thread.discard(state)
        update_patches()


def _forget_draws() -> None:
    """Forget draws after an interrupt: the next recorded draw starts at its generator's state."""
    if not modes.is_recording():
        generator_sync.forget_draws()
