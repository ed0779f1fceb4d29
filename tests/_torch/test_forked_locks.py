"""A process that is forked while other threads hold locks of the package can take all of them."""

from __future__ import annotations

import importlib
import os
import pkgutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import torchfake
from torchfake._torch import contexts

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()))


def locks_of_modules() -> dict[str, Any]:
    """The locks that modules of the package have as globals."""
    found = {}
    for info in pkgutil.walk_packages(torchfake.__path__, "torchfake."):
        if info.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, LOCK_TYPES):
                found[f"{info.name}.{name}"] = value
    return found


LOCKS = locks_of_modules()


def code_of_child(do: Callable[[], bool]) -> int:
    """The exit code of a forked process: 0 if `do` returned True there."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            code = 0 if do() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@contextmanager
def held_by_a_thread(lock: Any, *, until: threading.Event) -> Iterator[None]:
    held = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            until.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        yield
    finally:
        until.set()
        thread.join()


def test_every_lock_is_known() -> None:
    known = set(map(id, [*contexts._of_data, *contexts._of_calls]))
    assert len(LOCKS) >= 17
    assert {name for name, lock in LOCKS.items() if id(lock) not in known} == set()


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_that_another_thread_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child can take it, also if the thread does not give it back before the fork."""
    monkeypatch.setattr(contexts, "_SECONDS", 0.05)
    lock = LOCKS[name]
    with held_by_a_thread(lock, until=threading.Event()):
        assert code_of_child(lambda: lock.acquire(timeout=10)) == 0
        assert not lock.acquire(blocking=False)  # the parent's thread still has it


def test_a_fork_waits_for_what_guards_data() -> None:
    """So the child finds it whole."""
    lock, written = LOCKS["torchfake._graph.operations.recording_lock"], []

    def write() -> None:
        with lock:
            begun.set()
            threading.Event().wait(0.2)
            written.append("whole")

    begun, thread = threading.Event(), threading.Thread(target=write)
    thread.start()
    begun.wait(60)
    assert code_of_child(lambda: written == ["whole"]) == 0
    thread.join()


@pytest.mark.parametrize("name", [n for n, lock in LOCKS.items() if hasattr(lock, "_is_owned")])
def test_the_forking_thread_keeps_what_it_holds(name: str) -> None:
    lock = LOCKS[name]

    def is_held() -> bool:
        before = _is_held(lock)
        lock.release()
        return before and not _is_held(lock)

    with lock:
        assert code_of_child(is_held) == 0


def test_nothing_is_held_after_a_fork() -> None:
    assert code_of_child(lambda: not any(map(_is_held, LOCKS.values()))) == 0
    assert not any(map(_is_held, LOCKS.values()))


def _is_held(lock: Any) -> bool:
    """Whether a thread other than this one would have to wait."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(blocking=False))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken == [False]


def test_a_lock_is_returned() -> None:
    lock = LOCKS["torchfake._materialize.pipeline.lock"]
    known = list(contexts._of_calls)
    try:
        assert contexts.shared(lock, for_whole_calls=True) is lock
        assert contexts._of_calls == [*known, lock]
    finally:
        contexts._of_calls[:] = known
