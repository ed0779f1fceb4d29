"""The directory that a module is saved to: which of its files this save has made.

Input: a directory, and the digest of what is saved. Output: which files are complete already, and
the removal of those that no longer belong. Invariant: a directory that holds another model, or that
another save is writing to, is refused before anything in it changes; while files change there is no
index, so that a save that was interrupted never looks complete.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torchfake._files.disk import remove_incomplete, reported, write_whole
from torchfake._files.lock import DirectoryLock
from torchfake._files.safetensors import METADATA, read_header
from torchfake.errors import CheckpointError

INDEX = "model.safetensors.index.json"

_DIGEST = "torchfake_record"
"""The key under which the header of a file has the digest of what was saved."""


class OutputDirectory:
    """One save: where it writes, and the digest that its files carry. A context: when it ends, the
    directory is free for other saves.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self._digest = digest
        self._lock = DirectoryLock(path)
        self._names: dict[str, set[str]] = {}  # of the tensors in the files of this save

    def __enter__(self) -> OutputDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def prepare(self) -> None:
        """Make the directory and lock it; remove the index and what was left by interrupted saves.

        Raises:
            CheckpointError: if it is a file, holds another model, or is being written to.
        """
        if "\0" in os.fspath(self.path):
            raise CheckpointError(f"{os.fspath(self.path)!r} cannot be the name of a directory")
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file: give a directory")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        for path in self._files():
            self._check_own(path)
        remove_incomplete(self.path, of_all=self._lock.is_certain)
        (self.path / INDEX).unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The files of tensors that are there."""
        names = sorted(os.listdir(self.path))  # a glob would be silent if this is not allowed
        return [self.path / name for name in names if name.endswith(".safetensors")]

    def _check_own(self, path: Path) -> None:
        try:
            header = read_header(path)
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} already exists and is not a valid safetensors file: remove it, "
                "or give another directory"
            ) from error
        if not self._has_digest(header):
            raise CheckpointError(
                f"{path} was written for a different model, config or seed: remove it, or give "
                "another directory"
            )

    def is_complete(self, name: str, tensor_names: set[str]) -> bool:
        """Whether a file of this save, with these tensors, was written by an earlier call."""
        self._names[name] = tensor_names
        try:
            header = read_header(self.path / name)
        except (OSError, ValueError, RecursionError):
            return False
        return self._has_digest(header) and set(header) - {METADATA} == tensor_names

    def with_digest(self, metadata: dict[str, str]) -> dict[str, str]:
        """The metadata of a file, by which a later call knows it."""
        return {**metadata, _DIGEST: self._digest}

    def finish(self, contents: dict[str, bytes]) -> None:
        """Write the files that hold no tensors, by name, once all others are complete, the index
        last; remove files of the same model that a call with another ``max_shard_size`` has left.

        Raises:
            CheckpointError: if another save has written here too, where nothing could prevent it.
        """
        self._check_complete()
        for name in sorted(contents, key=lambda name: (name.endswith(".index.json"), name)):
            with reported(self.path / name, len(contents[name])):
                (self.path / name).parent.mkdir(exist_ok=True, parents=True)
                write_whole(self.path / name, contents[name])
        for path in self._files():
            if path.name not in self._names:
                self._check_own(path)
                path.unlink()
        self._lock.release()  # before other ranks go on

    def _check_complete(self) -> None:
        """On a file system without locks two saves may have met."""
        for name, tensor_names in list(self._names.items()):
            if not self.is_complete(name, tensor_names):
                (self.path / INDEX).unlink(missing_ok=True)
                raise CheckpointError(
                    f"{self.path / name} was changed by another process while it was saved: let "
                    "one process write at a time, and call again"
                )

    def _has_digest(self, header: dict[str, Any]) -> bool:
        metadata = header.get(METADATA)
        return isinstance(metadata, dict) and metadata.get(_DIGEST) == self._digest
