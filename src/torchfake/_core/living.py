"""Whether a mode is on or a fake lives in this process, on whatever thread.

Input: storages of fakes and entries of modes, each of which holds the sign; changes to undo.
Output: a call when the first holder takes the sign; the changes are undone after the last holder
has been freed. Invariant: as long as a storage or an entry lives, so does the sign, and nothing
else keeps the sign alive.

The last fake may die anywhere in a program, and Python drops an interrupt that arrives in Python
code of a weak reference's callback. So the callback is made of functions implemented in C, and
calls such functions: no interrupt and no other thread comes in between.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torchfake._torch.contexts import calls_in_c

_lock = threading.RLock()


class Sign:
    """Lives as long as a storage or a mode holds it."""

    __slots__ = ("__weakref__",)


def _nothing() -> None:
    """There is no sign, and nothing to call."""


class _State:
    def __init__(self) -> None:
        self.find: Callable[[], Sign | None] = _nothing  # a weak reference
        self.on_first: Callable[[], None] = _nothing
        self.to_undo: list[Callable[[], Any]] = []  # implemented in C, for this sign


state = _State()
"""``state.find()`` is the sign, or None if no fake lives and no mode is on."""


def begin() -> Sign:
    """The sign where there was none: to be held by the first storage or mode."""
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
    """The sign, to be held."""
    return state.find() or begin()
