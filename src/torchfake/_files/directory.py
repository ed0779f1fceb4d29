"""The directory that a module is saved to: which of its files this save has made.

Input: a directory, and the digest of what is saved. Output: which files are complete already, and
the removal of those that no longer belong. Invariant: a directory that holds another model is
refused before anything in it changes; while files change there is no index, so that a save that was
interrupted never looks complete. Called by: ``_files/save``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torchfake._files.safetensors import incomplete_name, remove_incomplete
from torchfake.errors import CheckpointError

INDEX = "model.safetensors.index.json"

_DIGEST = "torchfake_record"
"""The key under which the header of a file has the digest of what was saved."""


class OutputDirectory:
    """One save: where it writes, and the digest that its files carry."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self._digest = digest
        self._own_names: set[str] = set()  # of the files that belong to this save

    def prepare(self) -> None:
        """Make the directory; remove the index and what dead processes have left.

        Raises:
            CheckpointError: if it is a file, or holds another model.
        """
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file: give a directory")
        for path in sorted(self.path.glob("*.safetensors")):
            if not self._has_digest(_header_of(path)):
                raise CheckpointError(
                    f"{path} is of another model, of another seed, or of this one before it was "
                    "changed or materialized: remove it, or give another directory"
                )
        self.path.mkdir(parents=True, exist_ok=True)
        remove_incomplete(self.path)
        (self.path / INDEX).unlink(missing_ok=True)

    def is_complete(self, name: str, tensor_names: set[str]) -> bool:
        """Whether a file of this save, with these tensors, was written by an earlier call."""
        self._own_names.add(name)
        header = _header_of(self.path / name)
        return self._has_digest(header) and set(header) - {"__metadata__"} == tensor_names

    def with_digest(self, metadata: dict[str, str]) -> dict[str, str]:
        """The metadata of a file, by which a later call knows it."""
        return {**metadata, _DIGEST: self._digest}

    def write_last(self, contents: dict[str, bytes]) -> None:
        """Write the files that hold no tensors, by name, once all others are complete; the index
        comes last.
        """
        for name in sorted(contents, key=lambda name: (name.endswith(".index.json"), name)):
            path = incomplete_name(self.path / name)
            path.write_bytes(contents[name])
            os.replace(path, self.path / name)

    def remove_stale(self) -> None:
        """Remove files of the same model that a call with another ``max_shard_size`` has left."""
        for path in self.path.glob("*.safetensors"):
            if path.name not in self._own_names and self._has_digest(_header_of(path)):
                path.unlink()

    def _has_digest(self, header: dict[str, Any]) -> bool:
        metadata = header.get("__metadata__")
        return isinstance(metadata, dict) and metadata.get(_DIGEST) == self._digest


def _header_of(path: Path) -> dict[str, Any]:
    """The header of a safetensors file; empty if it is none."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, _MAX_HEADER_BYTES)))
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
