"""A mode entered and left, so that torch is restored wherever an interrupt arrives.

Input: a mode object, and the state of its new entry. Output: torch with the mode on, or as it was
before. Invariant: the modes of a thread are left in the reverse order of their entries; a mode that
nothing can leave any more (its ``with`` statement was interrupted before ``__exit__`` began, or its
object was dropped) has ended.

What a mode changes follows from the list of modes that are on, and from what each found when it was
entered. So there is one way back, :func:`end`, which may begin and stop anywhere and be called
again: by the entry or exit that was interrupted, by a weak reference when nothing is left that
could leave the mode (see ``_torch/contexts``), and by the next entry or exit of any mode.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torchfake._core import living, modes
from torchfake._core.modes import ModeState
from torchfake._patches import missing_devices
from torchfake._patches.install import update_patches
from torchfake._random import lazy_generators
from torchfake._recording import generator_sync
from torchfake._tensor import torch_function
from torchfake._torch import contexts, dispatcher, versions
from torchfake._torch.compiler import frames


class ModeExit:
    """``__exit__`` of a mode: for a ``with`` statement, an object that only the statement holds."""

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
    try:
        modes.thread.modes.append(state)
        modes.on_any_thread.add(state)
        state.sign = living.take()
        update_patches()
        dispatcher.set_only_lift_cpu(True)
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
    """Leave a mode that is the innermost of this thread.

    Raises:
        RuntimeError: if it is not. Nothing has changed then.
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
    """Go on in the lazy generator of the mode around this one. Recorded operations draw from the
    global generator: where that and a lazy generator meet, one goes on from the other.
    """
    if state.mark and not outer.mark:
        lazy_generators.position().move_global()
    elif outer.mark and not state.mark:
        generator_sync.synchronize_all()


class Entered(contexts.Restoring):
    """Context: a mode, as a part of a context that consists of several."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._entry: ModeState | None = None

    def change(self) -> None:
        self._mode.__enter__()

    def restore(self) -> None:
        # Kept, since a part of end may have been done when this is called again.
        self._entry = self._entry or next(iter(_entries_of(self._mode)), None)
        if self._entry is not None:
            end(self._entry)
            self._entry.owner = None


def _entries_of(mode: Any) -> list[ModeState]:
    return [state for state in modes.thread.modes if state.mode() is mode]


def _entry_to_leave(mode: Any, *, has_error: bool) -> tuple[ModeState | None, str]:
    """The entry of `mode`, not the innermost one, that is to be left, or None, and why that is an
    error, if it is one.
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
    # An error leaves what is inside too. Only what a suspended generator holds stays on, and this
    # mode with it: to raise here would hide the error.
    return (None if any(state.is_owned_by_with for state in inner) else own[-1]), ""


def _name_of(state: ModeState) -> str:
    return type(state.mode()).__name__ if state.mode() is not None else "a mode"


def end(state: ModeState) -> None:
    """Restore what the entry of `state` found, unless that was done. May be called again."""
    entries = modes.thread.modes
    if state in entries:
        ended = entries[entries.index(state) :]
        modes.on_any_thread.difference_update(ended)
        for each in ended:
            if each.daemons:
                modes.end_in_daemons(each)
        dispatcher.set_fake_mode(state.slot_before)
        dispatcher.set_only_lift_cpu(state.lift_before)
        frames.swap_frame_callback(state.frame_callback_before)
        del entries[entries.index(state) :]
        for other in ended[1:]:
            other.owner = other.sign = None
    modes.thread.initialiser_frame = None
    torch_function.update_override()
    modes.on_any_thread.discard(state)
    update_patches()
    state.sign = None


def _end_abandoned() -> None:
    """End the innermost modes of this thread as long as nothing can leave them any more."""
    entries = modes.thread.modes
    if not entries or entries[-1].owner() is not None:
        if not entries and modes.thread.drawn_generators:
            _forget_draws()
        return
    while entries and entries[-1].owner() is None:
        end(entries[-1])
    _forget_draws()


def _end_after_its_owner(state: ModeState) -> None:
    """Nothing is left that could leave `state`: end it, if it is on and this is its thread."""
    if state.thread_id == threading.get_ident():
        if state in modes.thread.modes or state in modes.on_any_thread:
            _end_abandoned()
            update_patches()
    elif state.thread_id not in {thread.ident for thread in threading.enumerate()}:
        modes.on_any_thread.discard(state)
        update_patches()  # a thread that is alive does it at its next entry or exit


def _forget_draws() -> None:
    """After an interrupt: what is recorded next draws from where its generator is."""
    if not modes.is_recording():
        generator_sync.forget_draws()
