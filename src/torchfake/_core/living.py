"""Whether any fake lives in this process, on whatever thread.

Input: storages of fakes, each of which holds the sign, in a slot that it has for something else.
Output: a call when the first storage is made, and one after the last has died. Invariant: as long
as a storage lives, so does the sign, and nothing else keeps the sign alive.

What torch has to be told of fakes outside of all modes (``_patches/while_fakes_live``) is told from
the one call to the other.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable

_lock = threading.RLock()


class Sign:
    """Lives as long as a storage holds it."""

    __slots__ = ("__weakref__",)


def _nothing() -> None:
    """There is no sign, and nothing to call."""


class _State:
    def __init__(self) -> None:
        self.find: Callable[[], Sign | None] = _nothing  # a weak reference
        self.on_first: Callable[[], None] = _nothing
        self.on_last: Callable[[], None] = _nothing


state = _State()
"""``state.find()`` is the sign, or None if no fake lives."""


def watch(on_first: Callable[[], None], on_last: Callable[[], None]) -> None:
    """Call the one function as the first fake is made, and the other after the last has died: at
    any place of the program, where the garbage collector frees that fake.
    """
    state.on_first, state.on_last = on_first, on_last


def are_there_any() -> bool:
    """Whether a fake lives."""
    return state.find() is not None


def begin() -> Sign:
    """The sign where there was none: to be held by the first storage."""
    with _lock:
        known = state.find()
        if known is not None:  # another thread was faster
            return known
        sign = Sign()
        state.find = weakref.ref(sign, _end)
    state.on_first()
    return sign


def _end(_: weakref.ref[Sign]) -> None:
    if not sys.is_finalizing():
        state.on_last()
