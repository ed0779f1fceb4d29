"""Checkpoints, opened and held against a module.

Enters: a directory, a file or a state dict, and the tensors of a module by name. Leaves: the values
that go to them. Invariant: all that is wrong is found before anything is changed, and no code from
a file runs.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchfake import _private
from torchfake._safetensors import INCOMPLETE
from torchfake._tensor import FakeTensor
from torchfake.errors import CheckpointError, MissingExtraError

Source = str | os.PathLike[str] | Mapping[str, Any]


class Entry(NamedTuple):
    """A tensor of a checkpoint."""

    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]  # mapped, where the file allows it


def nothing() -> torch.Tensor:
    """What cannot be read is never asked for."""
    raise AssertionError


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
        names = list(file.keys())
        return {
            name: Entry(tuple(file.get_slice(name).get_shape()), _getter(file, name))
            for name in names
        }
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _getter(file: Any, name: str) -> Callable[[], torch.Tensor]:
    return lambda: file.get_tensor(name)


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
        if isinstance(value, FakeTensor) or (isinstance(value, torch.Tensor) and value.is_meta):
            raise CheckpointError(f"{name} of {origin} has no values: it is fake, or on meta")
        if isinstance(value, torch.Tensor):
            entries[name] = Entry(tuple(value.shape), lambda value=value: value)  # type: ignore[misc]
    if state and not entries:
        raise CheckpointError(f"{origin} has no tensors at its top level; give its state dict")
    return entries


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
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


# Against a module.


def fitting(
    entries: dict[str, Entry],
    targets: Mapping[str, torch.Tensor],
    ignored: Iterable[str],
    *,
    strict: bool,
) -> dict[str, Entry]:
    """Those of `entries` that belong to `targets`.

    Args:
        entries: of a checkpoint.
        targets: by name.
        ignored: names that may be there, and are left alone.
        strict: whether it is an error if others are left over, or of another shape; otherwise a
            warning.

    Raises:
        CheckpointError: with all that is wrong.
    """
    unknown = sorted(set(entries) - set(targets) - set(ignored))
    others = [
        f"{name} is {list(entries[name].shape)} there and {list(tensor.shape)} here"
        for name, tensor in targets.items()
        if name in entries and entries[name].shape != tuple(tensor.shape)
    ]
    if unknown or others:
        text = _complaint(unknown, others, found=len(set(entries) & set(targets)))
        if strict:
            raise CheckpointError(f"{text}. strict=False takes what fits. Nothing was changed")
        warnings.warn(f"{text}: left out", stacklevel=4)
    return {
        name: entries[name]
        for name, tensor in targets.items()
        if name in entries and entries[name].shape == tuple(tensor.shape)
    }


def _complaint(unknown: list[str], others: list[str], found: int) -> str:
    parts = []
    if unknown:
        parts.append(f"the module does not have {_listed(unknown)} of the checkpoint")
        if not found:
            parts.append("the two have no name in common: is there a prefix?")
    if others:
        parts.append(f"shapes differ: {_listed(others)}")
    return "; ".join(parts)


def _listed(items: list[str]) -> str:
    shown = ", ".join(items[:_MAX_SHOWN])
    return shown if len(items) <= _MAX_SHOWN else f"{shown} and {len(items) - _MAX_SHOWN} more"


_MAX_SHOWN = 20


def copy_into(targets: Mapping[str, torch.Tensor], entries: dict[str, Entry]) -> None:
    """Write the values: recorded for those that are deferred, at once for those that are real."""
    with torch.no_grad():
        for name, entry in entries.items():
            with _private.as_eager():
                value = entry.read().detach()
            targets[name].copy_(value)
