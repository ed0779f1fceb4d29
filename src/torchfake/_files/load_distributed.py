"""Directories of torch.distributed.checkpoint, from which each rank reads its slices.

Input: a directory, and the names of a module's tensors. Output: tensors by those names, any slices
of which can be read. Invariant: no code from the directory runs: ``.metadata`` is a pickle, and
only the classes that belong in it are loaded. No process group is needed, as each rank reads for
itself.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchfake._sharding.local_slices import LocalSlices
from torchfake.errors import CheckpointError

_METADATA = ".metadata"


class SavedTensor(NamedTuple):
    """A tensor in a directory of torch.distributed.checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[LocalSlices], torch.Tensor]


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a directory of ``torch.distributed.checkpoint``."""
    return isinstance(path, (str, os.PathLike)) and os.path.isfile(Path(path) / _METADATA)


def open_directory(path: str | os.PathLike[str], known: Set[str]) -> dict[str, SavedTensor]:
    """The tensors of a checkpoint, by the names in their state dict.

    If the checkpoint has several state dicts, as in ``{"model": ..., "optimizer": ...}``, these are
    the tensors of the one with most of the names in `known`.

    Raises:
        CheckpointError: if it is damaged, or several state dicts have equally many of the names.
    """
    folder = Path(path)
    try:
        metadata = _metadata_in(folder)
        groups = _groups(metadata)
        reader = _reader(folder, metadata)
    except Exception as error:  # pickle raises exceptions of any class
        raise CheckpointError(
            f"{folder / _METADATA} cannot be read: it is damaged, truncated or would run code: "
            f"{error}"
        ) from error
    return {
        name: SavedTensor(
            tuple(saved.size), saved.properties.dtype, _SlicesReader(reader, full_name, saved)
        )
        for name, (full_name, saved) in _best_group(folder, groups, known).items()
    }


_Group = dict[str, tuple[str, Any]]
"""A state dict of the checkpoint: for each name the full name in the files, and its metadata."""


def _groups(metadata: Any) -> dict[tuple[str, ...], _Group]:
    """The state dicts of a checkpoint, by the keys that they are nested under."""
    groups: dict[tuple[str, ...], _Group] = {}
    paths = metadata.planner_data or {}
    for full_name, saved in metadata.state_dict_metadata.items():
        if hasattr(saved, "chunks"):
            *outer, name = map(str, paths.get(full_name, (full_name,)))
            groups.setdefault(tuple(outer), {})[name] = full_name, saved
    return groups


def _best_group(folder: Path, groups: dict[tuple[str, ...], _Group], known: Set[str]) -> _Group:
    num_known = {outer: len(known & set(group)) for outer, group in groups.items()}
    most = max(num_known.values(), default=0)
    best = [outer for outer in groups if num_known[outer] == most]
    if len(best) > 1 and most and () not in best:
        named = " and ".join(".".join(outer) for outer in best)
        raise CheckpointError(
            f"{folder} has as many names of the module in {named}: save the one that is meant on "
            "its own, or load it with torch.distributed.checkpoint"
        )
    if not best:
        return {}
    return groups[() if () in best else best[0]]


# The metadata of a checkpoint, loaded without running code.

_ALLOWED_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.distributed._shard.sharded_tensor.metadata": ("MEM_FORMAT_ENCODING", "TensorProperties"),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "collections": ("OrderedDict",),
    "pathlib": ("Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"),
    "pathlib._local": ("Path", "PosixPath", "WindowsPath"),
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    """Loads the classes in the metadata of a checkpoint, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name not in _ALLOWED_CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in such metadata")
        return super().find_class(module, name)


def _metadata_in(folder: Path) -> Any:
    with (folder / _METADATA).open("rb") as file:
        return _Unpickler(file).load()


# The tensors of a checkpoint, read by torch's reader.


def _reader(folder: Path, metadata: Any) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    reader = FileSystemReader(folder)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    return reader


class _SlicesReader:
    """Reads slices of one tensor."""

    def __init__(self, reader: Any, name: str, saved: Any) -> None:
        self._reader = reader
        self._name = name
        self._saved = saved

    def __call__(self, slices: LocalSlices) -> torch.Tensor:
        """Read the shard that consists of these slices into a new tensor."""
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
        from torch.distributed.checkpoint.planner import LoadPlan
        from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

        target = torch.empty(slices.shape, dtype=self._saved.properties.dtype)
        chunks = list(slices.chunks())
        requested = [
            ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
            for chunk in chunks
        ]
        views = {c.offsets: _narrowed(target, c.local_offsets, c.sizes) for c in chunks}
        items = create_read_items_for_chunk_list(self._name, self._saved, requested)
        num_found = sum(item.lengths.numel() for item in items)
        if num_found != target.numel():
            raise CheckpointError(f"it has {num_found} of the {target.numel()} elements requested")
        self._reader.read_data(LoadPlan(items), _planner(views)).wait()
        return target


def _planner(views: dict[tuple[int, ...], torch.Tensor]) -> Any:
    """A planner that gives torch's reader the memory of each chunk: a part of one of `views`."""
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner

    class Planner(LoadPlanner):
        def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
            raise NotImplementedError

        def create_local_plan(self) -> LoadPlan:
            raise NotImplementedError

        def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
            raise NotImplementedError

        def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
            raise NotImplementedError

        def load_bytes(self, read_item: Any, value: Any) -> None:
            raise NotImplementedError

        def resolve_tensor(self, read_item: Any) -> torch.Tensor:
            view = views[tuple(read_item.dest_index.offset)]
            return _narrowed(view, read_item.dest_offsets, read_item.lengths)

        def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
            pass

    return Planner()


def _narrowed(tensor: torch.Tensor, offsets: Any, sizes: Any) -> torch.Tensor:
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor
