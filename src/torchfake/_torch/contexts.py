"""Contexts that change state of torch, and restore it wherever an interrupt arrives.

Input: a change, and how it is undone. Output: a context for a ``with`` statement. Invariant: once
the statement has been left, the change is undone, whatever bytecode a KeyboardInterrupt was raised
at: in the entry, in the exit, and between them.

``try`` and ``finally`` are not enough: Python raises KeyboardInterrupt at the first bytecode of
``__exit__`` too, and then nothing of it has run (python/cpython#74174). But a ``with`` statement
looks ``__exit__`` up once, before it enters, and holds what it has found. So that is an object of
its own, and a weak reference calls :meth:`Restoring.restore` again if it dies before the context
was left. An exit is repeated rather than resumed: ``restore`` has to be right after any part of
``change``, and when it is called again.
"""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import compress
from typing import Any

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
    """The results of functions, each called when its result is asked for: in C."""
    return map(_call, functions)


def watch(exit_or_owner: Any, restore: Callable[[], None]) -> weakref.ref[Any]:
    """Call `restore` when the object dies before the reference that is returned does."""
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
    """Base of contexts: what :meth:`change` does is undone by :meth:`restore`. Each is entered
    once.
    """

    _exit_ref: weakref.ref[Any] | None = None

    def change(self) -> Any:
        """Make the change; the return value is bound by ``as``."""
        raise NotImplementedError

    def restore(self) -> None:
        """Undo the part of it that was made, if that has not been done."""
        raise NotImplementedError

    def interrupted(self, error: BaseException) -> None:
        """Called before :meth:`restore` if a KeyboardInterrupt or the like is leaving the block, or
        an error that it has led to.
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
    context._exit_ref = None  # which refers to the context


def handled_errors(error: BaseException) -> list[BaseException]:
    """An error, and those during whose handling it was raised."""
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and not any(at is other for other in found):
        found.append(at)
        at = None if at.__suppress_context__ else at.__context__  # raised "from": on purpose
    return found


def interrupt_behind(error: BaseException) -> BaseException | None:
    """The KeyboardInterrupt or the like that `error` is, or was raised during the handling of.

    Contexts of other libraries, left half-way, raise errors of their own.
    """
    return next((e for e in handled_errors(error) if not isinstance(e, Exception)), None)


class Guards(Restoring):
    """Context: guards of torch, or other contexts implemented in C, are made and entered together.

    Args:
        *makers: of a guard each, implemented in C: some guards are on as soon as they are made.
        made: contexts implemented in C that are entered too, such as locks.
        then: implemented in C too: called when all have been entered.
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
    """Context: something that torch has one of, or this thread, has another value.

    Args:
        get: returns the present value.
        set_: sets it.
        value: for the time of the context.
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
    """Context: several contexts of this kind, entered in order and left in reverse."""

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
