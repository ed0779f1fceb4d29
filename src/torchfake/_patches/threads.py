"""Modes propagated into threads, and into work submitted to executors.

Input: a thread started, or work submitted to an executor, inside a mode. Output: the thread or the
work runs in a mode like it. Invariant: a thread started, and work submitted, outside of modes runs
outside of modes; a thread of a pool is in a mode only while it runs work submitted in one.

As in :mod:`contextvars`, the mode is captured where the work is submitted, and entered around the
function where it runs, even if the mode was left in between. So results do not depend on how
threads are scheduled. A daemon thread, which nobody waits for, leaves the mode when the thread that
entered the mode leaves it: daemon threads run on in the background (those of pools, of progress
bars), and would keep a mode on for ever.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

from torchfake._core import modes
from torchfake._core.modes import ModeState
from torchfake._patches import entry, install
from torchfake._patches.patch import Patch, replacing
from torchfake._random import lazy_generators
from torchfake._recording import generator_sync
from torchfake._torch import contexts


class CapturedMode:
    """The innermost mode of the capturing thread, and the state that threads in that mode share."""

    def __init__(self, state: ModeState) -> None:
        self.state = state
        self.drawn_generators = modes.thread.drawn_generators
        self.draw_position = lazy_generators.position()
        self.answerers = tuple(modes.answerers())

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `function` in a mode like the captured one, on the current thread."""
        with _Following(self):
            return function(*args, **kwargs)

    def run_thread(self, thread: threading.Thread, run: Callable[[], None], own: Any) -> None:
        """Restore the thread's own ``run``, and call `run` in a mode like the captured one."""
        _restore_run(thread, own)
        with _Following(self, is_daemon=thread.daemon):
            run()


def captured_mode() -> CapturedMode | None:
    """The mode of this thread, or None outside of all modes."""
    state = modes.current()
    return None if state is None else CapturedMode(state)


class _Following(contexts.Restoring):
    """Context in which this thread is in a mode like the one captured on another thread."""

    def __init__(self, captured: CapturedMode, *, is_daemon: bool = False) -> None:
        self._captured = captured
        self._is_daemon = is_daemon
        self._state: ModeState | None = None
        self._position_before = modes.thread.draw_position

    def change(self) -> None:
        origin = self._captured.state
        if self._is_daemon and origin not in modes.on_any_thread:
            return
        # a thread begins with the first device as its current one
        machine = None if origin.accelerator is None else origin.accelerator.unused()
        answerers = self._captured.answerers
        self._state = ModeState(accelerator=machine, mark=origin.mark, answerers=answerers)
        dispatch = origin.dispatch
        if self._is_daemon:
            make: Any = _daemon_class(type(dispatch))  # type: ignore[arg-type]
            dispatch = make(self._state)
        entry.enter(self, self._state, dispatch)
        modes.thread.draw_position = self._captured.draw_position
        if self._is_daemon:
            origin.daemons.append(self._state)
            if origin not in modes.on_any_thread:  # the captured mode was left meanwhile
                modes.end_in_daemons(origin)

    def restore(self) -> None:
        if self._state is None:
            return
        entry.end(self._state)
        self._state.owner = None
        modes.thread.draw_position = self._position_before
        if modes.is_recording():
            return
        # The thread that entered the mode moves the generators, once, when it leaves the mode.
        self._captured.drawn_generators.update(modes.thread.drawn_generators)
        if self._captured.state in modes.on_any_thread:
            modes.thread.drawn_generators.clear()
        else:
            generator_sync.synchronize_all()
        if self._is_daemon and self._state in self._captured.state.daemons:
            self._captured.state.daemons.remove(self._state)


@functools.cache
def _daemon_class(dispatch_class: Any) -> Any:
    """A class of modes for torch's FAKE slot in daemon threads: a mode that is over ends itself."""
    if hasattr(dispatch_class, "is_of_daemon"):  # of a daemon thread that starts another
        return dispatch_class

    def dispatch(
        self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not self._state.is_over:
            return dispatch_class.__torch_dispatch__(self, func, types, args, kwargs)
        entry.end(self._state)
        return func(*args, **(kwargs or {}))

    def init(self: Any, state: ModeState) -> None:
        dispatch_class.__init__(self)
        self._state = state

    namespace = {"__init__": init, "__torch_dispatch__": dispatch, "is_of_daemon": True}
    return type(f"{dispatch_class.__name__}OfDaemon", (dispatch_class,), namespace)


# Threads.


@replacing
def _following_start(original: Any, thread: threading.Thread) -> None:
    """``Thread.start``: the thread runs in the mode that it is started in."""
    captured = None if modes.thread.starts_plain_threads else captured_mode()
    if captured is None:
        original(thread)
        return
    own = thread.__dict__.get("run")
    thread.run = functools.partial(captured.run_thread, thread, thread.run, own)  # type: ignore[method-assign]
    try:
        original(thread)
    except BaseException:  # started before, or too many threads
        _restore_run(thread, own)
        raise


def _restore_run(thread: threading.Thread, own: Any) -> None:
    """Give a thread the ``run`` that it had: one of its own, or that of its class."""
    if own is not None:
        thread.__dict__["run"] = own
    else:
        thread.__dict__.pop("run", None)


# Executors and pools.


@replacing
def _following_work(original: Any, executor: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``ThreadPoolExecutor.submit`` and methods of ``ThreadPool``: the function runs in the mode of
    the caller; threads that are started for it are in none.
    """
    captured = captured_mode()
    if captured is None:
        return original(executor, *args, **kwargs)
    if args:
        args = functools.partial(captured.run, args[0]), *args[1:]
    elif "func" in kwargs:
        kwargs["func"] = functools.partial(captured.run, kwargs["func"])
    with modes.starting_plain_threads():
        return original(executor, *args, **kwargs)


@replacing
def _plainly(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The constructor of ``ThreadPool``: the threads that it starts are in no mode."""
    with modes.starting_plain_threads():
        return original(*args, **kwargs)


install.PATCHES_FOR_ANY_MODE += [
    Patch(threading.Thread, "start", _following_start),
    Patch(ThreadPoolExecutor, "submit", _following_work),
    Patch(ThreadPool, "__init__", _plainly),
    *(
        Patch(ThreadPool, name, _following_work)
        for name in ("apply_async", "_map_async", "imap", "imap_unordered")
    ),
]
