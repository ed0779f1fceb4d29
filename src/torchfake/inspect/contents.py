"""What is in a model or a checkpoint: its tensors by name, as plain records.

Enters: a module, a TARGET, or the path of a checkpoint. Leaves: a :class:`Contents`. Invariant: of
a file its header alone is read; no value of a tensor is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchfake import _load, _transformers
from torchfake.errors import CheckpointError, TargetError
from torchfake.inspect.build import build
from torchfake.inspect.overrides import one_line
from torchfake.inspect.specs import dtype_name
from torchfake.inspect.targets import resolve
from torchfake.inspect.tree import joined

Source = nn.Module | str | os.PathLike[str]

_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".index.json")


@dataclass(frozen=True)
class NamedTensor:
    """One tensor of a model or checkpoint."""

    name: str  # in full
    shape: tuple[int, ...] | None  # None: not known, as of a lazy module's
    dtype: str | None  # without "torch."; None: one that torch does not have
    size_bytes: int
    kind: str | None  # "parameter", "buffer" or "unsaved buffer"; None: a file does not say
    trainable: bool | None  # None: a file does not say
    tied_to: str | None  # the name under which it was counted, if not this one

    @property
    def num_values(self) -> int:
        """How many numbers it holds."""
        return 0 if self.shape is None else torch.Size(self.shape).numel()

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return {**self.__dict__, "shape": None if self.shape is None else list(self.shape)}


@dataclass(frozen=True)
class Contents:
    """All tensors of a model or checkpoint, in its order."""

    source: str  # a module's class, or the text that was given
    is_checkpoint: bool
    tensors: dict[str, NamedTensor]
    notes: tuple[str, ...] = ()
    is_converted: bool = False  # transformers reads its checkpoints under other names

    @property
    def counted(self) -> Iterator[NamedTensor]:
        """Its tensors, each once."""
        return (tensor for tensor in self.tensors.values() if tensor.tied_to is None)

    @property
    def num_tensors(self) -> int:
        """How many there are."""
        return sum(1 for _ in self.counted)

    @property
    def num_values(self) -> int:
        """How many numbers they hold."""
        return sum(tensor.num_values for tensor in self.counted)

    @property
    def num_parameters(self) -> int | None:
        """How many of those are parameters'; None if a file does not say."""
        if self.is_checkpoint:
            return None
        return sum(t.num_values for t in self.counted if t.kind == "parameter")

    @property
    def size_bytes(self) -> int:
        """How large they are."""
        return sum(tensor.size_bytes for tensor in self.counted)

    @property
    def saved(self) -> Contents:
        """The same without what a checkpoint does not hold."""
        saved = {name: t for name, t in self.tensors.items() if t.kind != "unsaved buffer"}
        return replace(self, tensors=saved)

    def to_dict(self) -> dict[str, Any]:
        """The totals, ready for JSON."""
        return {
            "source": self.source,
            "is_checkpoint": self.is_checkpoint,
            "num_tensors": self.num_tensors,
            "num_values": self.num_values,
            "num_parameters": self.num_parameters,
            "size_bytes": self.size_bytes,
        }


def contents(
    source: Source, *, overrides: Sequence[str] = (), dtype: torch.dtype | None = None
) -> Contents:
    """What `source` holds; a TARGET is built without its weights.

    Args:
        source: a module; a TARGET; the path of a checkpoint. A directory with weights and a config
            is a checkpoint.
        overrides: ``key=value`` each, for a TARGET's config or arguments.
        dtype: the floating point dtype to build a TARGET in.

    Raises:
        TargetError: if it is neither, or cannot be built, or if it is not built and there are
            overrides for it.
        CheckpointError: if it is a checkpoint and cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source)
        if not is_checkpoint(text):
            target = resolve(text, overrides=overrides)
            return _of_module(build(target, dtype=dtype).module, text, target.notes)
        _check_no_overrides(text, overrides)
        return _of_checkpoint(text)
    if not isinstance(source, nn.Module):
        raise TargetError(
            f"a module, a TARGET or the path of a checkpoint is needed, not {type(source).__name__}"
        )
    _check_no_overrides(type(source).__name__, overrides)
    return _of_module(source, type(source).__name__, ())


def is_checkpoint(text: str) -> bool:
    """Whether a text names a checkpoint, there or not, rather than a TARGET."""
    path = Path(text)
    if path.is_dir():
        holds_weights = any(file.name.endswith(_FILES) for file in path.iterdir())
        return holds_weights or not (path / "config.json").exists()
    return text.endswith(_FILES) or (path.is_file() and path.suffix != ".json")


def _check_no_overrides(name: str, overrides: Sequence[str]) -> None:
    if overrides:
        raise TargetError(f"{name} is not built from a config, so {overrides[0]!r} changes nothing")


def _of_checkpoint(text: str) -> Contents:
    tensors: dict[str, NamedTensor] = {}
    first: dict[Any, str] = {}
    notes = []
    for name, entry in _open(text).items():
        if entry.trouble is None:
            tensors[name] = _named(name, _read(name, entry), first)
        else:
            shape = entry.shape or None
            tensors[name] = NamedTensor(name, shape, None, 0, None, None, None)
            notes.append(f"{text}: {name} {entry.trouble}")
    return Contents(text, True, tensors, tuple(notes))


def _open(text: str) -> dict[str, _load.Entry]:
    try:
        return _load.open_checkpoint(text)
    except RuntimeError as error:  # safetensors: there is no room to map a file
        raise CheckpointError(f"{text} cannot be read: {one_line(error)}") from error


def _read(name: str, entry: _load.Entry) -> torch.Tensor:
    """The tensor, its file mapped: nothing of it is read before somebody looks at its values."""
    try:
        return entry.read()
    except Exception as error:  # a file's contents decide
        raise CheckpointError(f"{name} cannot be read: {one_line(error)}") from error


def _named(name: str, tensor: torch.Tensor, first: dict[Any, str]) -> NamedTensor:
    """Two names for the same stretch of a file are one tensor."""
    place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
    where = first.setdefault(place, name) if tensor.numel() else name
    tied = None if where == name else where
    return NamedTensor(
        name, tuple(tensor.shape), dtype_name(tensor.dtype), tensor.nbytes, None, None, tied
    )


def _of_module(module: nn.Module, text: str, notes: Sequence[str]) -> Contents:
    first: dict[int, str] = {}
    tensors = {
        name: _of_tensor(name, tensor, kind, first) for name, tensor, kind in _tensors_of(module)
    }
    converted = _transformers.is_its_model(module) and _transformers.converts(module)
    return Contents(text, False, tensors, tuple(notes), converted)


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, str]]:
    for path, part in _modules_of(module, "", ()):
        for name, parameter in part._parameters.items():
            if parameter is not None:
                yield joined(path, name), parameter, "parameter"
        for name, buffer in part._buffers.items():
            if buffer is not None:
                unsaved = name in part._non_persistent_buffers_set
                yield joined(path, name), buffer, "unsaved buffer" if unsaved else "buffer"


def _modules_of(
    module: nn.Module, path: str, above: tuple[nn.Module, ...]
) -> Iterator[tuple[str, nn.Module]]:
    """All of them under all their names, but for a module inside itself."""
    yield path, module
    for name, child in module._modules.items():
        if child is not None and not any(child is m for m in (*above, module)):
            yield from _modules_of(child, joined(path, name), (*above, module))


def _of_tensor(name: str, tensor: torch.Tensor, kind: str, first: dict[int, str]) -> NamedTensor:
    where = first.setdefault(id(tensor), name)
    lazy = is_lazy(tensor)
    return NamedTensor(
        name,
        None if lazy else tuple(tensor.shape),
        dtype_name(tensor.dtype),
        0 if lazy else tensor.numel() * tensor.dtype.itemsize,
        kind,
        tensor.requires_grad if kind == "parameter" else False,
        None if where == name else where,
    )
