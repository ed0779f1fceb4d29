"""Contexts that restore the state of torch wherever an interrupt arrives; locks that outlast forks.

Input: a change, and how it is undone. Output: a context for a ``with`` statement. Invariant: once
the statement has been left, the change is undone, whatever bytecode a KeyboardInterrupt was raised
at: in the entry, in the exit, and between them.

``try`` and ``finally`` are not enough: Python raises KeyboardInterrupt at the first bytecode of
``__exit__`` too, and then nothing of it has run (python/cpython#74174). But a ``with`` statement
looks ``__exit__`` up once, before it enters, and holds the result. So the look-up makes an object,
and a weak reference calls :meth:`Restoring.restore` again if the object dies before the context was
left. An exit is repeated rather than resumed: ``restore`` has to be right after any part of
``change``, and when it is called again.
"""

from __future__ import annotations

import operator
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import compress
from typing import Any, TypeVar

_call = operator.methodcaller("__call__")
_enter = operator.methodcaller("__enter__")
_leave = operator.methodcaller("__exit__", None, None, None)


def uninterrupted(calls: Iterable[Callable[[], Any]]) -> None:
    """Call functions that are implemented in C, one after the other, without an interrupt in
    between: none of Python's bytecodes run here, and only between these are signals handled.
    """
    deque(map(_call, calls), maxlen=0)


def calls_in_c(functions: Iterable[Callable[[], Any]]) -> Iterator[Any]:
    """An iterator whose ``next(iterator, None)`` calls functions that are implemented in C and
    return None, one after the other, in C.
    """
    return filter(None, map(_call, functions))


def call_if(flags: Iterable[Any], function: Callable[[], Any]) -> Callable[[], Any]:
    """A function that calls `function` if the one element of `flags`, an iterator implemented in C,
    is true. The call is made in C, and works once.
    """
    return partial(next, calls_in_c(compress([function], flags)), None)


def results(functions: Iterable[Callable[[], Any]]) -> Iterator[Any]:
    """An iterator that calls each function, in C, when its result is asked for."""
    return map(_call, functions)


def watch(exit_or_owner: Any, restore: Callable[[], None]) -> weakref.ref[Any]:
    """A weak reference that calls `restore` if the object dies before the reference does."""
    return weakref.ref(exit_or_owner, lambda _: restore())


class _Exit:
    """``__exit__`` of :class:`Restoring`: an object that is made for each ``with`` statement."""

    def __get__(self, context: Restoring | None, cls: Any = None) -> Callable[..., None]:
        if context is None:
            return leave
        exit_ = partial(leave, context)
        context._exit_ref = watch(exit_, context.restore)
        return exit_


class Restoring:
    """Base of contexts: :meth:`restore` undoes :meth:`change`. Each context is entered once."""

    _exit_ref: weakref.ref[Any] | None = None

    def change(self) -> Any:
        """Make the change; the return value is bound by ``as``."""
        raise NotImplementedError

    def restore(self) -> None:
        """Undo the part of the change that was made, if it has not been undone."""
        raise NotImplementedError

    def interrupted(self, error: BaseException) -> None:
        """A hook that runs before :meth:`restore` if the block is left by a KeyboardInterrupt or
        the like, or by an error that was raised while that was handled.
        """

    def __enter__(self) -> Any:
        try:
            return self.change()
        except BaseException:
            self.restore()
            raise

    __exit__ = _Exit()


def leave(context: Restoring, _type: Any = None, error: Any = None, _trace: Any = None) -> None:
    """Leave a context: what its ``__exit__`` does."""
    try:
        if error is not None and interrupt_behind(error) is not None:
            context.interrupted(error)
        context.restore()
    except BaseException:
        context.restore()
        raise
    context._exit_ref = None  # whose callback refers to the context


def handled_errors(error: BaseException) -> list[BaseException]:
    """An error, and the errors during whose handling it was raised, directly or indirectly."""
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and not any(at is other for other in found):
        found.append(at)
        at = None if at.__suppress_context__ else at.__context__  # raised "from": on purpose
    return found


def interrupt_behind(error: BaseException) -> BaseException | None:
    """The KeyboardInterrupt or the like among the :func:`handled_errors` of `error`, or None.

    Contexts of other libraries, left half-way, raise errors of their own.
    """
    return next((e for e in handled_errors(error) if not isinstance(e, Exception)), None)


class Guards(Restoring):
    """Context: guards of torch, or other contexts implemented in C, are made and entered together.

    Args:
        *makers: functions in C that make a guard each; some guards are on as soon as they are made.
        made: contexts implemented in C that are entered too, such as locks.
        then: a function in C that is called when all have been entered.
    """

    def __init__(
        self,
        *makers: Callable[[], Any],
        made: Iterable[Any] = (),
        then: Callable[[], Any] | None = None,
    ) -> None:
        self._makers = makers
        self._then = [] if then is None else [then]
        self._guards: list[Any] = [*made]
        self._state: list[str] = []

    def change(self) -> None:
        make = partial(self._guards.extend, map(_call, self._makers))
        enter: Any = partial(deque, map(_enter, self._guards), 0)
        uninterrupted([make, enter, *self._then, partial(self._state.append, "entered")])

    def restore(self) -> None:
        if self._state:
            leave: Any = partial(deque, map(_leave, self._guards[::-1]), 0)
            uninterrupted([self._state.clear, leave, self._guards.clear])


def holding(lock: Any) -> Guards:
    """Context: this thread holds `lock`. ``with lock`` can be interrupted before it is released."""
    return Guards(made=[lock])


_NOT_CHANGED: Any = object()


class Setting(Restoring):
    """Context: a setting of the process or of this thread has another value.

    Args:
        get: returns the value of the setting.
        set_: sets the value.
        value: the value inside the context.
    """

    def __init__(self, get: Callable[[], Any], set_: Callable[[Any], Any], value: Any) -> None:
        self._get, self._set, self._value = get, set_, value
        self._before = _NOT_CHANGED

    def change(self) -> None:
        self._before = self._get()
        if self._before != self._value:
            self._set(self._value)

    def restore(self) -> None:
        if self._before is not _NOT_CHANGED and self._before != self._value:
            self._set(self._before)


class Together(Restoring):
    """Context: several :class:`Restoring` contexts, entered in order and left in reverse."""

    def __init__(self, *contexts: Restoring) -> None:
        self._contexts = contexts

    def interrupted(self, error: BaseException) -> None:
        for context in reversed(self._contexts):
            context.interrupted(error)

    def change(self) -> Any:
        for context in self._contexts:
            context.change()

    def restore(self) -> None:
        for context in reversed(self._contexts):
            context.restore()


# Locks that threads share, and a forked process. After a fork those are held that the forking
# thread holds, and no others; what a lock of data guards is not found half-changed. A fork waits
# for locks of data, which are held for moments. It does not wait for one held for a whole call,
# such as a materialization: what these calls change is whole at any time, since they may be
# interrupted at any time.

_Lock = TypeVar("_Lock")

_SECONDS = 5.0
"""The longest that a fork waits. Only two threads that wait for each other take as long: one forks
while it holds a lock that the other, which holds one of data, asks for."""

_of_data: list[Any] = []
_of_calls: list[Any] = []
_taken: dict[int, list[Any]] = {}  # by thread: what it has taken in order to fork


def shared(lock: _Lock, *, for_whole_calls: bool = False) -> _Lock:
    """The lock, known from now on to processes that are forked from this one.

    Args:
        lock: as ``threading`` makes them, which is never freed.
        for_whole_calls: it is held for as long as a call takes.
    """
    (_of_calls if for_whole_calls else _of_data).append(lock)
    return lock


def _take() -> None:
    end = time.monotonic() + _SECONDS
    taken = _taken[threading.get_ident()] = []
    for lock in _of_data:
        if lock.acquire(timeout=max(0.0, end - time.monotonic())):
            taken.append(lock)


def _give_back() -> None:
    for lock in reversed(_taken.pop(threading.get_ident(), ())):
        lock.release()


def _free_in_child() -> None:
    _give_back()
    _taken.clear()
    for lock in [*_of_data, *_of_calls]:
        if _is_held_by_a_thread_that_is_gone(lock):
            lock._at_fork_reinit()  # of CPython 3.9 and later, which its own modules use


def _is_held_by_a_thread_that_is_gone(lock: Any) -> bool:
    is_owned = getattr(lock, "_is_owned", None)
    return not is_owned() if is_owned is not None else lock.locked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_give_back, after_in_child=_free_in_child)
