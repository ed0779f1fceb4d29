"""Checkpoints, opened: their tensors by name, memory-mapped.

Input: a directory, a file or a state dict. Output: an :class:`Entry` for each tensor. Invariant: no
values are read before they are used, and no code from a file runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchfake._files import load_distributed
from torchfake._files.disk import INCOMPLETE
from torchfake._files.safetensors import DTYPES
from torchfake._sharding.local_slices import LocalSlices, local_slices_of
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch.distributed import dtensors
from torchfake.errors import CheckpointError, MissingExtraError

Source = str | os.PathLike[str] | Mapping[str, Any]


class Entry(NamedTuple):
    """A tensor of a checkpoint."""

    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]  # memory-mapped, where the file allows it
    is_complex: bool = False
    problem: str | None = None  # why the tensor cannot be read; None if it can be
    read_slices: Callable[[LocalSlices], torch.Tensor] | None = None  # into new memory; not mapped
    dtensor: Any = None  # a sharded value of a state dict


def is_distributed(source: Source) -> bool:
    """Whether `source` is a directory of ``torch.distributed.checkpoint``."""
    return not isinstance(source, Mapping) and load_distributed.is_checkpoint(source)


def open_distributed(source: Any, known: Set[str]) -> dict[str, Entry]:
    """The tensors in a directory of ``torch.distributed.checkpoint``, by name; if it has several
    state dicts, the tensors of the one with most of the names in `known`.

    Raises:
        CheckpointError: if it is damaged, or it is not clear which state dict is meant.
    """
    saved = load_distributed.open_directory(source, known)
    return {name: _entry_of_saved(tensor) for name, tensor in saved.items()}


def _entry_of_saved(tensor: load_distributed.SavedTensor) -> Entry:
    def read() -> torch.Tensor:
        return tensor.read(local_slices_of("", torch.empty(tensor.shape, device="meta")))

    return Entry(tensor.shape, read, tensor.dtype.is_complex, None, tensor.read)


def open_checkpoint(source: Source) -> dict[str, Entry]:
    """The tensors of a checkpoint, by name.

    Args:
        source: a directory, a ``.safetensors`` file, an index, a file of ``torch.save``, or a state
            dict; for ``torch.distributed.checkpoint`` see :func:`open_distributed`.

    Raises:
        CheckpointError: if `source` is none of these, or damaged.
        MissingExtraError: for a safetensors file, if the library safetensors is not installed.
    """
    if isinstance(source, Mapping):
        return _entries_of("the state dict", source)
    if not isinstance(source, (str, os.PathLike)):
        raise CheckpointError(
            f"a checkpoint is a directory, a file or a state dict, not a {type(source).__name__}"
        )
    path = Path(source)
    try:
        path = _file_in(path) if path.is_dir() else path
        exists, is_file = path.exists(), path.is_file()
    except OSError as error:  # the path is not accessible, or too long
        raise _unreadable(path, error) from error
    if not exists:
        raise CheckpointError(
            f"checkpoint is {str(path)!r}, which does not exist: give a directory, a file or a "
            "state dict"
        )
    if not is_file:
        raise CheckpointError(f"{path} is neither a file nor a directory")
    if path.name.endswith(".index.json"):
        return _read_index(path)
    return _read_file(path)


def unused_entries(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Entry]:
    """Entries, marked as problems, for tensors of a checkpoint that transformers did not load."""
    return {
        name: Entry(shape, torch.Tensor, problem=f"is {list(shape)} there, and was left out")
        for name, shape in shapes.items()
    }


_FILE_NAMES = (
    "model.safetensors.index.json", "model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model.safetensors",
    "pytorch_model.bin.index.json", "pytorch_model.bin",
)  # fmt: skip


def _file_in(folder: Path) -> Path:
    """The index or file of the checkpoint in a directory."""
    for name in _FILE_NAMES:
        if (folder / name).exists():
            return folder / name
    patterns = f"*{INCOMPLETE}", "*-of-*.safetensors"
    is_interrupted = any(any(folder.glob(pattern)) for pattern in patterns)
    raise CheckpointError(
        f"{folder} has none of {', '.join(_FILE_NAMES)}"
        + ("; it is left over from a save that was interrupted" if is_interrupted else "")
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
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise _unreadable(path, error) from error


def _entry_of(file: Any, name: str) -> Entry:
    metadata = file.get_slice(name)
    dtype = metadata.get_dtype()
    problem = None if dtype in DTYPES.values() else f"is {dtype}, which torch does not have"
    shape = tuple(metadata.get_shape())
    return Entry(shape, lambda: file.get_tensor(name), dtype.startswith("C"), problem)


def _read_pickle(path: Path) -> dict[str, Entry]:
    try:
        loaded = _load(path)
    except Exception as error:  # pickle raises exceptions of any class
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
    except RuntimeError:  # the older format, not a zip file, cannot be memory-mapped
        return torch.load(path, map_location="cpu", weights_only=True)


def _entries_of(origin: str, state: Mapping[str, Any]) -> dict[str, Entry]:
    entries = {}
    for name, value in state.items():
        if not isinstance(name, str):
            raise CheckpointError(f"{origin} has the key {name!r}, which is not a tensor name")
        if isinstance(value, torch.Tensor):
            entries[name] = _entry_of_tensor(value)
    if state and not entries:
        raise CheckpointError(f"{origin} has no tensors at its top level: give its state dict")
    return entries


def _entry_of_tensor(value: torch.Tensor) -> Entry:
    problem = None
    if isinstance(dtensors.local_tensor_of(value), FakeTensor) or value.is_meta:
        problem = "has no values: it is fake, or on the meta device"
    elif value.layout != torch.strided or value.is_nested or value.is_quantized:
        problem = "is sparse, nested or quantized: convert it to a plain tensor"
    shape = () if problem else tuple(value.shape)
    dtensor = value if dtensors.is_dtensor(value) else None
    return Entry(shape, lambda: value, value.is_complex(), problem, dtensor=dtensor)


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    lines = str(error).strip().splitlines()
    return CheckpointError(
        f"{path} cannot be read: it is damaged, truncated or no checkpoint: "
        f"{lines[0] if lines else type(error).__name__}"
    )


def _read_index(path: Path) -> dict[str, Entry]:
    files = {}
    entries = {}
    for name, file in _weight_map(path).items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise CheckpointError(f"{path} names {file!r} for {name}, a file outside its directory")
        if file not in files:
            if not (path.parent / file).is_file():
                raise CheckpointError(f"{path} names {file}, which does not exist")
            files[file] = _read_file(path.parent / file)
        if name not in files[file]:
            raise CheckpointError(f"{path} names {file} for {name}, which is not in that file")
        entries[name] = files[file][name]
    return entries


def _weight_map(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return dict(json.loads(text, object_pairs_hook=_unique)["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(path, error) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, as a dict; refuses duplicate names, whose file would be ambiguous."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {twice!r} twice")
    return found
