"""Slices of files among the arguments of recorded operations: bytes that are read at the replay.

Input: the name of a file, and a range of its bytes. Output: the bytes, when a replay asks for them.
Invariant: no byte is read earlier; reading from a file that was written, replaced or removed in the
meantime is an error.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from typing import NamedTuple

import torch

from torchfake._core import memory
from torchfake._core.storage import SharedBytes
from torchfake.errors import CheckpointError


class FileVersion(NamedTuple):
    """The facts about a file that change when the file is replaced or written."""

    inode: int
    num_bytes: int
    modified_ns: int


class File:
    """A file in its current version. Reading a slice from another version is an error."""

    __slots__ = ("path", "version")

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        _wait_for_clock(os.stat(self.path).st_mtime_ns)
        self.version = _version(os.stat(self.path))

    @property
    def num_bytes(self) -> int:
        return self.version.num_bytes

    def check(self, stat: os.stat_result) -> None:
        """Raise a CheckpointError if `stat` shows that the file was replaced or written."""
        if _version(stat) != self.version:
            raise CheckpointError(
                f"{self.path} was modified or replaced after tensors were loaded from it, and "
                "their values are read only when needed: load them again, or call "
                "materialize_module before the file changes"
            )


def _version(stat: os.stat_result) -> FileVersion:
    return FileVersion(stat.st_ino, stat.st_size, stat.st_mtime_ns)


_CLOCK_TICK_NS = 20_000_000
"""The longest time between two writes with the same modification time: Linux takes this time from a
clock that advances once per tick."""


def _wait_for_clock(modified_ns: int) -> None:
    """Wait until a further write would set a modification time other than `modified_ns`."""
    age_ns = time.time_ns() - modified_ns
    if 0 <= age_ns < _CLOCK_TICK_NS:
        time.sleep((_CLOCK_TICK_NS - age_ns) / 1e9)


class FileSlice:
    """A range of bytes of a file, read when the bytes are needed."""

    __slots__ = ("file", "num_bytes", "start_bytes")

    def __init__(self, file: File, start_bytes: int, num_bytes: int) -> None:
        self.file = file
        self.start_bytes = start_bytes
        self.num_bytes = num_bytes

    def part(self, first: int, last: int) -> FileSlice:
        """The slice from byte `first` (inclusive) to byte `last` (exclusive) of this slice."""
        return FileSlice(self.file, self.start_bytes + first, last - first)

    def read(self) -> torch.UntypedStorage:
        """The bytes, in new memory.

        Raises:
            CheckpointError: if the file cannot be read or has changed. The message names the file.
        """
        made = torch.UntypedStorage(self.num_bytes, device="cpu")
        view = (ctypes.c_char * self.num_bytes).from_address(made.data_ptr() or 1)
        self._read_into(memoryview(view).cast("B"))
        return made

    def digest(self) -> bytes:
        """The SHA-256 digest of the bytes."""
        digest = hashlib.sha256()
        for first in range(0, self.num_bytes, _BLOCK_BYTES):
            last = min(first + _BLOCK_BYTES, self.num_bytes)
            block = bytearray(last - first)
            self.part(first, last)._read_into(memoryview(block))
            digest.update(block)
        return digest.digest()

    def _read_into(self, view: memoryview) -> None:
        try:
            with open(self.file.path, "rb", buffering=0) as file:
                self.file.check(os.fstat(file.fileno()))
                file.seek(self.start_bytes)
                while view:
                    num_read = file.readinto(view)
                    if not num_read:
                        raise CheckpointError(f"{self.file.path} ends too early")
                    view = view[num_read:]
                self.file.check(os.fstat(file.fileno()))
        except OSError as error:
            raise CheckpointError(
                f"{self.file.path} cannot be read ({error.strerror}), and the values of tensors "
                "loaded from it are read only when needed: restore it, or call materialize_module "
                "before removing the file"
            ) from error

    def __repr__(self) -> str:
        name = os.path.basename(self.file.path)
        return f"<{name} {self.start_bytes}:{self.start_bytes + self.num_bytes}>"


_BLOCK_BYTES = 16 * 1024 * 1024


def read_slice(source: FileSlice) -> torch.Tensor:
    """The bytes of a slice, uint8[n]. This function is recorded as an operation of the graph."""
    return memory.flat_view(source.read(), torch.uint8)


class FileBytes(SharedBytes):
    """A known value that is read from its file when it is first needed."""

    __slots__ = ("_source",)

    def __init__(self, source: FileSlice) -> None:
        super().__init__(None)
        self._source = source

    def bytes(self) -> torch.UntypedStorage:
        if self.value is None:
            self.value = self._source.read()
        return self.value

    @property
    def num_bytes(self) -> int:
        return self._source.num_bytes
