"""Checkpoints, opened.

Enters: a directory, a file or a state dict. Leaves: its tensors by name, mapped. Invariant: nothing
of them is read before somebody looks at it, and no code from a file runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchfake import _load_distributed
from torchfake import _private_distributed as _distributed
from torchfake._parts import Part, part_of
from torchfake._safetensors import DTYPES, INCOMPLETE
from torchfake._tensor import FakeTensor
from torchfake.errors import CheckpointError, MissingExtraError

Source = str | os.PathLike[str] | Mapping[str, Any]


class Entry(NamedTuple):
    """A tensor of a checkpoint."""

    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]  # mapped, where the file allows it
    is_complex: bool = False
    trouble: str | None = None  # why it cannot be read
    read_part: Callable[[Part], torch.Tensor] | None = None  # into new memory, if not mapped
    sharded: Any = None  # a DTensor of a state dict


def is_distributed(source: Source) -> bool:
    """Whether `source` is a directory of ``torch.distributed.checkpoint``."""
    return not isinstance(source, Mapping) and _load_distributed.is_one(source)


def open_distributed(source: Any, known: Set[str]) -> dict[str, Entry]:
    """Its tensors: of several things in it, those by most of the names that are `known`.

    Raises:
        CheckpointError: if it is damaged, or it cannot be told which.
    """
    saved = _load_distributed.open_directory(source, known)
    return {name: _entry_of_saved(each) for name, each in saved.items()}


def _entry_of_saved(saved: _load_distributed.Saved) -> Entry:
    def read() -> torch.Tensor:
        return saved.read(part_of("", torch.empty(saved.shape, device="meta")))

    return Entry(saved.shape, read, saved.dtype.is_complex, None, saved.read)


def open_checkpoint(source: Source) -> dict[str, Entry]:
    """The tensors of a checkpoint, by name.

    Args:
        source: a directory, a ``.safetensors`` file, an index, a file of ``torch.save``, or a state
            dict; no directory of ``torch.distributed.checkpoint``.

    Raises:
        CheckpointError: if it is none of these, or damaged.
        MissingExtraError: for a safetensors file, without the library.
    """
    if isinstance(source, Mapping):
        return _entries_of("the state dict", source)
    if not isinstance(source, (str, os.PathLike)):
        raise CheckpointError(
            f"a checkpoint is a directory, a file or a state dict, not a {type(source).__name__}"
        )
    path = Path(source)
    if path.is_dir():
        path = _file_in(path)
    elif not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if path.name.endswith(".index.json"):
        return _read_index(path)
    return _read_file(path)


def entries_not_read(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Entry]:
    """What another reader has left out."""
    return {
        name: Entry(shape, torch.Tensor, trouble=f"is {list(shape)} there, and was left out")
        for name, shape in shapes.items()
    }


_NAMES = (
    "model.safetensors.index.json", "model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model.safetensors",
    "pytorch_model.bin.index.json", "pytorch_model.bin",
)  # fmt: skip


def _file_in(folder: Path) -> Path:
    for name in _NAMES:
        if (folder / name).exists():
            return folder / name
    unfinished = any(any(folder.glob(made)) for made in (f"*{INCOMPLETE}", "*-of-*.safetensors"))
    raise CheckpointError(
        f"{folder} has none of {', '.join(_NAMES)}"
        + ("; it is left over from a save that was interrupted" if unfinished else "")
    )


def _read_file(path: Path) -> dict[str, Entry]:
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)


def _read_safetensors(path: Path) -> dict[str, Entry]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingExtraError(
            f'{path.name} needs safetensors: pip install "torchfake[files]"'
        ) from None
    try:
        file: Any = safe_open(path, framework="pt", device="cpu")
        return {name: _entry_of(file, name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _entry_of(file: Any, name: str) -> Entry:
    place = file.get_slice(name)
    dtype = place.get_dtype()
    trouble = None if dtype in DTYPES.values() else f"is {dtype}, which torch does not have"
    shape = tuple(place.get_shape())
    return Entry(shape, lambda: file.get_tensor(name), dtype.startswith("C"), trouble)


def _read_pickle(path: Path) -> dict[str, Entry]:
    try:
        loaded = _load(path)
    except Exception as error:  # pickle raises anything
        raise _unreadable(path, error) from error
    for key in ("state_dict", "model_state_dict", "model", "module"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping):
        raise CheckpointError(f"{path} holds a {type(loaded).__name__}, not a state dict")
    return _entries_of(str(path), loaded)


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # of a time before zip files
        return torch.load(path, map_location="cpu", weights_only=True)


def _entries_of(origin: str, state: Mapping[str, Any]) -> dict[str, Entry]:
    entries = {}
    for name, value in state.items():
        if not isinstance(name, str):
            raise CheckpointError(f"{origin} has the key {name!r}, which is no name of a tensor")
        if isinstance(value, torch.Tensor):
            entries[name] = _entry_of_tensor(value)
    if state and not entries:
        raise CheckpointError(f"{origin} has no tensors at its top level; give its state dict")
    return entries


def _entry_of_tensor(value: torch.Tensor) -> Entry:
    trouble = None
    if isinstance(_distributed.held_by(value), FakeTensor) or value.is_meta:
        trouble = "has no values: it is fake, or on meta"
    elif value.layout != torch.strided or value.is_nested or value.is_quantized:
        trouble = "is sparse, nested or quantized: convert it to a plain tensor"
    shape = () if trouble else tuple(value.shape)
    sharded = value if isinstance(value, _distributed.dtensor_class()) else None
    return Entry(shape, lambda: value, value.is_complex(), trouble, sharded=sharded)


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    said = str(error).strip().splitlines()
    return CheckpointError(
        f"{path} cannot be read, for it is damaged, cut short or no checkpoint: "
        f"{said[0] if said else type(error).__name__}"
    )


def _read_index(path: Path) -> dict[str, Entry]:
    files = {}
    entries = {}
    for name, file in _weight_map(path).items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise CheckpointError(f"{path} names {file!r} for {name}, which is not beside it")
        if file not in files:
            if not (path.parent / file).is_file():
                raise CheckpointError(f"{path} names {file}, which is not there")
            files[file] = _read_file(path.parent / file)
        if name not in files[file]:
            raise CheckpointError(f"{path} has {name} in {file}, which does not have it")
        entries[name] = files[file][name]
    return entries


def _weight_map(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return dict(content["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(path, error) from error
