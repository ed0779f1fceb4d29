"""Whether a mode is on or a fake lives in this process, on any thread.

Input: storages of fakes and entries of modes, which all hold one object, the *sign*; changes to
undo. Output: a call when the first holder takes the sign; the changes are undone after the last
holder has been freed. Invariant: the sign lives exactly as long as some storage or entry holds it.

The last fake may be freed anywhere in a program, and Python discards an interrupt that arrives in
Python code of a weak reference's callback. So the callback, and all functions that it calls, are
implemented in C: no interrupt and no other thread comes in between.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torchfake._torch.contexts import calls_in_c, shared

_lock = shared(threading.RLock())


class Sign:
    """An object that lives as long as a storage or a mode holds it."""

    __slots__ = ("__weakref__",)


def _nothing() -> None:
    """Stand in for the weak reference while there is no sign, and for an unset ``on_first``."""


class _State:
    def __init__(self) -> None:
        self.find: Callable[[], Sign | None] = _nothing  # a weak reference to the sign
        self.on_first: Callable[[], None] = _nothing
        self.to_undo: list[Callable[[], Any]] = []  # called, in C, when the sign is freed


state = _State()
"""``state.find()`` is the sign, or None if no fake lives and no mode is on."""


def begin() -> Sign:
    """Make the sign, which the first storage or mode holds."""
    with _lock:
        known = state.find()
        if known is not None:  # another thread was faster
            return known
        sign = Sign()
        state.to_undo = []
        state.find = weakref.ref(sign, partial(next, calls_in_c(state.to_undo)))
    state.on_first()
    return sign


def take() -> Sign:
    """The sign, made if there is none; the caller holds it."""
    return state.find() or begin()
