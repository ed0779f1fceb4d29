"""The directory that a module is saved to, and which of its files belong to this save.

Input: a directory, and the digest of the module that is saved. Output: which files are complete
already, and the removal of files that do not belong to the save. Invariant: a directory that holds
another model, or that another save is writing to, is refused before anything in it changes; while
files change there is no index, so an interrupted save never looks complete.
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
"""The key of the digest in the metadata of a file's header."""


class OutputDirectory:
    """The directory of one save, and the digest that the save's files carry. A context manager:
    when it exits, the directory is unlocked.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self._digest = digest
        self._lock = DirectoryLock(path)
        self._names: dict[str, set[str]] = {}  # file of this save -> names of its tensors

    def __enter__(self) -> OutputDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def prepare(self) -> None:
        """Make and lock the directory; remove its index, and incomplete files of earlier saves.

        Raises:
            CheckpointError: if its path is a file, it holds another model, or another save is
                writing to it.
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
        """The safetensors files that the directory holds."""
        names = sorted(os.listdir(self.path))  # unlike glob, raises if reading is not allowed
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
        """Whether an earlier call has written the file `name` of this save, with these tensors."""
        self._names[name] = tensor_names
        try:
            header = read_header(self.path / name)
        except (OSError, ValueError, RecursionError):
            return False
        return self._has_digest(header) and set(header) - {METADATA} == tensor_names

    def with_digest(self, metadata: dict[str, str]) -> dict[str, str]:
        """Add the digest to a file's metadata, by which a later call recognizes the file."""
        return {**metadata, _DIGEST: self._digest}

    def finish(self, contents: dict[str, bytes]) -> None:
        """Write the files that hold no tensors, the index last; remove files of the same model that
        a call with another ``max_shard_size`` has left. All files of tensors must be complete.

        Raises:
            CheckpointError: if another save wrote at the same time, on a file system without locks.
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
        self._lock.release()  # before other ranks proceed to a next save

    def _check_complete(self) -> None:
        """Check that no other save has changed a file, which is possible without file locks."""
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
