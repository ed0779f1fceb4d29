"""Checkpoints, opened and held against a module.

Enters: a directory, a file or a state dict, and the tensors of a module by name. Leaves: the values
that go to them. Invariant: all that is wrong is found before anything is changed, and no code from
a file runs.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchfake import _private, _transformers
from torchfake._graph import MAX_EXTERNAL_BYTES
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


def open_checkpoint(source: Source) -> dict[str, Entry]:
    """The tensors of a checkpoint, by name.

    Args:
        source: a directory, a ``.safetensors`` file, an index, a file of ``torch.save``, or a state
            dict.

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


def _not_read(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Entry]:
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
    unfinished = any(folder.glob(f"*{INCOMPLETE}"))
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
    if isinstance(value, FakeTensor) or value.is_meta:
        trouble = "has no values: it is fake, or on meta"
    elif value.layout != torch.strided or value.is_nested or value.is_quantized:
        trouble = "is sparse, nested or quantized: convert it to a plain tensor"
    shape = () if trouble else tuple(value.shape)
    return Entry(shape, lambda: value, value.is_complex(), trouble)


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


# Against a module.


class Value(NamedTuple):
    """What goes where."""

    name: str
    target: torch.Tensor
    entry: Entry


def values_for(
    module: torch.nn.Module, checkpoint: Source, chosen: set[int], *, strict: bool
) -> list[Value]:
    """What a checkpoint has for the tensors of a module's state that are `chosen`, by identity.

    Args:
        module: whose names count; those of its other tensors may be there, and are left alone.
        checkpoint: see :func:`open_checkpoint`.
        chosen: identities of parameters and buffers.
        strict: whether it is an error if more is there, or does not fit; otherwise a warning.

    Raises:
        CheckpointError: with all that is wrong.
    """
    state = module.state_dict(keep_vars=True)
    buffers = (name for name, _ in module.named_buffers(remove_duplicate=False))
    known = {*state, *buffers}
    targets = {name: tensor for name, tensor in state.items() if id(tensor) in chosen}
    entries = _entries_for(module, checkpoint, known)
    found = [Value(name, t, entries[name]) for name, t in targets.items() if name in entries]
    troubles = {value.name: _trouble(value.entry, value.target) for value in found}
    unknown = sorted(set(entries) - known)
    others = [f"{name} {trouble}" for name, trouble in troubles.items() if trouble]
    nothing = bool(targets) and not found
    if unknown or others or nothing:
        text = _complaint(unknown, others, nothing=nothing)
        if strict:
            raise CheckpointError(f"{text}. strict=False takes what fits. Nothing was changed")
        warnings.warn(f"{text}: left out", stacklevel=3)
    return [value for value in found if not troubles[value.name]]


def _entries_for(module: torch.nn.Module, checkpoint: Source, known: set[str]) -> dict[str, Entry]:
    """Those of the checkpoint, by the module's names."""
    entries = open_checkpoint(checkpoint)
    if isinstance(checkpoint, Mapping) or known >= set(entries) or not os.path.isdir(checkpoint):
        return entries
    if not _transformers.is_its_model(module) or not _transformers.converts(module):
        return entries
    read, others = _transformers.read_pretrained(module, checkpoint)
    return {**open_checkpoint(read), **_not_read(others)}


def _trouble(entry: Entry, target: torch.Tensor) -> str | None:
    """Why an entry cannot go to its target."""
    if entry.trouble is not None:
        return entry.trouble
    if torch.nn.parameter.is_lazy(target):
        return "has no shape here yet: run a forward pass first"
    if entry.shape != tuple(target.shape):
        return f"is {list(entry.shape)} there and {list(target.shape)} here"
    if entry.is_complex and not target.is_complex():
        return f"is complex there and {target.dtype} here"
    if any(step == 0 and n > 1 for step, n in zip(target.stride(), target.shape, strict=True)):
        return "is expanded here: its elements share memory"
    if target.is_inference() and not isinstance(target, FakeTensor):
        return "is a real inference tensor here, which cannot be written"
    return None


def _complaint(unknown: list[str], others: list[str], *, nothing: bool) -> str:
    parts = []
    if unknown:
        parts.append(f"the module does not have {_listed(unknown)} of the checkpoint")
    if nothing:
        parts.append("the two have no name in common (is there a prefix?)")
    if others:
        parts.append(f"these do not fit: {_listed(others)}")
    return "; ".join(parts)


def _listed(items: list[str]) -> str:
    shown = ", ".join(items[:_MAX_SHOWN])
    return shown if len(items) <= _MAX_SHOWN else f"{shown} and {len(items) - _MAX_SHOWN} more"


_MAX_SHOWN = 20


def copy(values: list[Value]) -> None:
    """Write the values: recorded for those that are deferred, at once for those that are real.

    Raises:
        CheckpointError: if a file cannot be read after all. Nothing has changed then.
    """
    with _private.as_eager():
        read = [_value_of(value.name, value.entry) for value in values]
    with torch.no_grad():
        for value, tensor in zip(values, read, strict=True):
            value.target.copy_(tensor)


def _value_of(name: str, entry: Entry) -> torch.Tensor:
    """Mapped; but what the record keeps for another time must not go with its file."""
    try:
        value = entry.read().detach()
    except Exception as error:  # a file's contents decide
        raise CheckpointError(f"{name} cannot be read: {error}. Nothing was changed") from error
    return value.clone() if value.nbytes <= MAX_EXTERNAL_BYTES else value
