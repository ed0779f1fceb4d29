"""Calls of the system that fail: each that a save makes, with each error it may give."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CODES = [
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EIO", "EMFILE", "ESTALE")
]

STRIDE = int(os.environ.get("FAULT_STRIDE", "6"))
"""Every so many calls are tried."""

_CALLS: list[tuple[Any, str]] = [
    (os, "open"), (os, "mkdir"), (os, "listdir"), (os, "ftruncate"), (os, "pwrite"), (os, "fsync"),
    (os, "replace"), (builtins, "open"), (io, "open"),
]  # fmt: skip


@contextlib.contextmanager
def calls_watched(folder: Path, at_call: Callable[[int, str], None]) -> Iterator[None]:
    """Context in which `at_call` is called before each call of the system that names a file in
    `folder` or has one open, with its number and its name.
    """
    count = 0
    originals = [(module, name, getattr(module, name)) for module, name in _CALLS]

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if _is_in(folder, args[0]):
                count += 1
                at_call(count, name)
            return original(*args, **kwargs)

        return call

    for module, name, original in originals:
        setattr(module, name, watched(name, original))
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _is_in(folder: Path, where: object) -> bool:
    if isinstance(where, int):
        where = os.readlink(f"/proc/self/fd/{where}")
    return isinstance(where, (str, os.PathLike)) and os.fspath(where).startswith(str(folder))


def num_calls(folder: Path, do: Callable[[], Any]) -> int:
    """How many calls of the system `do` makes."""
    counts = [0]
    with calls_watched(folder, lambda count, _: counts.append(count)):
        do()
    return counts[-1]


@contextlib.contextmanager
def failing_at(number: int, code: int, folder: Path) -> Iterator[None]:
    """Context in which one call fails."""

    def at_call(count: int, _: str) -> None:
        if count == number:
            raise OSError(code, os.strerror(code))

    with calls_watched(folder, at_call):
        yield


@contextlib.contextmanager
def dying_at(number: int, folder: Path) -> Iterator[None]:
    """Context in which the process ends before one call, without another line of Python."""

    def at_call(count: int, _: str) -> None:
        if count == number:
            os._exit(9)

    with calls_watched(folder, at_call):
        yield


def bytes_in(folder: Path) -> dict[str, bytes]:
    """All files of a directory."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
