"""A lock on a directory, so that one save at a time writes to it.

Input: a directory. Output: a lock, or an error if another save holds it. Invariant: the operating
system releases the lock of a process that dies, so a leftover lock file blocks nobody; a forked
process does not inherit the lock.

The lock is on a file in the directory; the mere existence of a file would outlive a killed process.
``flock`` also excludes other threads of the process, and on NFS other machines.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import sys
import threading
import weakref
from pathlib import Path

from torchfake._files.disk import reported
from torchfake._torch.contexts import shared
from torchfake.errors import CheckpointError

LOCK_NAME = ".torchfake.lock"

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, getattr(errno, "EOPNOTSUPP", errno.ENOSYS))
"""The error numbers of a file system without locks."""

_IS_LOCKED = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK)

_held: weakref.WeakValueDictionary[tuple[int, int], DirectoryLock] = weakref.WeakValueDictionary()
"""The locks of this process by directory: the only ones on a file system without locks."""

_held_guard = shared(threading.RLock())


class DirectoryLock:
    """The right to write to a directory, from :meth:`acquire` to :meth:`release`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME
        self._file: io.FileIO | None = None
        self._key: tuple[int, int] | None = None
        self.is_certain = True  # whether no other save can write; False without file locks

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            CheckpointError: if another save holds it, or the directory cannot be written to.
        """
        with reported(self._path):
            found = os.stat(self._path.parent)
        key = (found.st_dev, found.st_ino)
        with _held_guard:
            if key in _held:
                raise self._busy()
            _held[key] = self
        self._key = key
        try:
            with reported(self._path):
                self._file = self._locked_file()
        except BaseException:
            self._forget()
            raise

    def release(self) -> None:
        """Release the lock and remove its file; do nothing if the lock was not acquired."""
        file, self._file = self._file, None
        try:
            if file is not None:
                _unlock_and_remove(file, self._path)
        finally:
            self._forget()

    def disown(self) -> None:
        """Forget the lock without releasing it: it belongs to the process that forked this one."""
        file, self._file = self._file, None
        if file is not None:
            file.close()  # the parent has a descriptor of its own

    def _forget(self) -> None:
        with _held_guard:
            if self._key is not None and _held.get(self._key) is self:
                del _held[self._key]

    def _locked_file(self) -> io.FileIO:
        """Open and lock the lock file, and make sure that it is still in the directory."""
        for _ in range(1000):
            file = io.FileIO(os.open(self._path, _FLAGS, 0o666), "r+b")
            try:
                self._lock(file)
                if self._is_in_place(file):
                    _sign(file)
                    return file
            except BaseException:
                file.close()
                raise
            file.close()  # its owner removed it between open and lock
        raise self._busy()

    def _lock(self, file: io.FileIO) -> None:
        try:
            _lock(file.fileno())
        except OSError as error:
            if error.errno in _IS_LOCKED:
                raise self._busy() from None
            if error.errno not in _NO_LOCKS:
                raise
            self.is_certain = False

    def _is_in_place(self, file: io.FileIO) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self._path), os.fstat(file.fileno()))
        return False

    def _busy(self) -> CheckpointError:
        owner = "another save"
        with contextlib.suppress(OSError):
            owner = self._path.read_text(encoding="utf-8", errors="replace")[:200] or owner
        return CheckpointError(
            f"{self._path.parent} is being written to by {owner}: wait for it, or give another "
            "directory. Nothing was changed"
        )


def _sign(file: io.FileIO) -> None:
    """Write the owner into the lock file, for error messages, unless the disk is full."""
    with contextlib.suppress(OSError):
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())


_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)

if sys.platform == "win32":
    import msvcrt

    _FLAGS |= os.O_BINARY
    _LOCKED_BYTE = 1 << 30  # after the text of the file, which other processes read

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

    def _unlock_and_remove(file: io.FileIO, path: Path) -> None:
        os.lseek(file.fileno(), _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        file.close()
        with contextlib.suppress(OSError):  # another process has opened the file
            path.unlink()

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock_and_remove(file: io.FileIO, path: Path) -> None:
        """Remove the file, then unlock it: whoever locks it next finds it is not in place."""
        try:
            with contextlib.suppress(OSError):
                path.unlink()
            with contextlib.suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)  # forked processes may hold copies
        finally:
            file.close()


def _disown_all() -> None:
    for lock in list(_held.values()):
        lock.disown()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
