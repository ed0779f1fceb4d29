"""Checkpoints of torch.distributed.checkpoint, read by torch part by part.

Enters: a directory and the names that a module knows. Leaves: tensors by those names, of which any
part can be read. Invariant: its ``.metadata``, a pickle that torch reads with whatever code it has,
is read here with the classes alone that belong there; and no process group is needed, as each rank
reads for itself.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchfake._parts import Part
from torchfake.errors import CheckpointError

_METADATA = ".metadata"


class Saved(NamedTuple):
    """A tensor of a checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[Part], torch.Tensor]


def is_one(path: str | os.PathLike[str]) -> bool:
    """Whether there is such a checkpoint."""
    return isinstance(path, (str, os.PathLike)) and (Path(path) / _METADATA).is_file()


def open_directory(path: str | os.PathLike[str], known: Set[str]) -> dict[str, Saved]:
    """The tensors of a checkpoint, by the names that a module knows.

    Of a checkpoint of several things, as in ``{"model": ..., "optimizer": ...}``, that is the one
    most of whose names are `known`.

    Raises:
        CheckpointError: if it is damaged, or several parts of it have as many of the names.
    """
    folder = Path(path)
    try:
        metadata = _metadata_in(folder)
        groups = _groups(metadata)
        reader = _reader(folder, metadata)
    except Exception as error:  # a pickle raises anything
        raise CheckpointError(
            f"{folder / _METADATA} cannot be read, for it is damaged, cut short or would run code: "
            f"{error}"
        ) from error
    return {
        own: Saved(tuple(saved.size), saved.properties.dtype, _Reading(reader, full, saved))
        for own, (full, saved) in _chosen(folder, groups, known).items()
    }


_Group = dict[str, tuple[str, Any]]  # names, the names they have in the files, and what is there


def _groups(metadata: Any) -> dict[tuple[str, ...], _Group]:
    """The tensors by what their names were nested in."""
    groups: dict[tuple[str, ...], _Group] = {}
    paths = metadata.planner_data or {}
    for full, saved in metadata.state_dict_metadata.items():
        if hasattr(saved, "chunks"):
            *outer, own = map(str, paths.get(full, (full,)))
            groups.setdefault(tuple(outer), {})[own] = full, saved
    return groups


def _chosen(folder: Path, groups: dict[tuple[str, ...], _Group], known: Set[str]) -> _Group:
    hits = {outer: len(known & set(group)) for outer, group in groups.items()}
    most = max(hits.values(), default=0)
    best = [outer for outer in groups if hits[outer] == most]
    if len(best) > 1 and most and () not in best:
        named = " and ".join(".".join(outer) for outer in best)
        raise CheckpointError(
            f"{folder} has as many names of the module in {named}: save what is wanted on its own, "
            "or load it with torch.distributed.checkpoint"
        )
    if not best:
        return {}
    return groups[() if () in best else best[0]]


# Its metadata, without running code.

_NAMES = {
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
    """Makes what such metadata consists of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name not in _NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} has no business there")
        return super().find_class(module, name)


def _metadata_in(folder: Path) -> Any:
    with (folder / _METADATA).open("rb") as file:
        return _Unpickler(file).load()


# Its tensors, by torch's reader.


def _reader(folder: Path, metadata: Any) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    reader = FileSystemReader(folder)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    return reader


class _Reading:
    """Reads parts of one tensor."""

    def __init__(self, reader: Any, name: str, saved: Any) -> None:
        self._reader = reader
        self._name = name
        self._saved = saved

    def __call__(self, part: Part) -> torch.Tensor:
        """A new tensor of the shape of the shard."""
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
        from torch.distributed.checkpoint.planner import LoadPlan
        from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

        target = torch.empty(part.shape, dtype=self._saved.properties.dtype)
        boxes = list(part.boxes())
        chunks = [ChunkStorageMetadata(torch.Size(b.offsets), torch.Size(b.sizes)) for b in boxes]
        views = {b.offsets: _view(target, b.own_offsets, b.sizes) for b in boxes}
        items = create_read_items_for_chunk_list(self._name, self._saved, chunks)
        found = sum(item.lengths.numel() for item in items)
        if found != target.numel():
            raise CheckpointError(f"it has {found} of the {target.numel()} elements wanted")
        self._reader.read_data(LoadPlan(items), _planner(views)).wait()
        return target


def _planner(views: dict[tuple[int, ...], torch.Tensor]) -> Any:
    """Tells torch's reader where elements go to: part of which view."""
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
            return _view(view, read_item.dest_offsets, read_item.lengths)

        def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
            pass

    return Planner()


def _view(tensor: torch.Tensor, offsets: Any, sizes: Any) -> torch.Tensor:
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor
