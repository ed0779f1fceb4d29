"""The tensors of a model or a checkpoint by name, as plain records.

Input: a module, a TARGET, or the path of a checkpoint. Output: a :class:`Contents`. Invariant: only
the headers of files are read, not the values of tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchfake._core.pickle_names import publish
from torchfake._files import load
from torchfake._files.transformers_checkpoints import converts_checkpoints, is_transformers_model
from torchfake.errors import CheckpointError, TargetError
from torchfake.inspect.contents.configs import config_of
from torchfake.inspect.contents.described import described_format, described_weights
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.records.module_names import join_name
from torchfake.inspect.records.tensor_specs import dtype_name
from torchfake.inspect.targets.build import build
from torchfake.inspect.targets.resolve import resolve
from torchfake.inspect.targets.transformers_models import read_config
from torchfake.observe import held_bytes

Source = nn.Module | str | os.PathLike[str]

_CHECKPOINT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".index.json")


@dataclass(frozen=True)
class NamedTensor:
    """One tensor of a model or checkpoint."""

    name: str  # the full name
    shape: tuple[int, ...] | None  # None: not known, as in a lazy module
    dtype: str | None  # without "torch."; None: a dtype that torch does not have
    size_bytes: int
    kind: (
        str | None
    )  # "parameter", "buffer" or "non-persistent buffer"; None: not recorded in a file
    trainable: bool | None  # None: not recorded in a file
    tied_to: str | None  # the name under which the tensor is counted, if another one

    @property
    def tensor(self) -> str:
        """The name under which the tensor is counted."""
        return self.tied_to or self.name

    @property
    def num_values(self) -> int:
        """The number of elements; 0 if the shape is not known."""
        return 0 if self.shape is None else torch.Size(self.shape).numel()

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        return {**self.__dict__, "shape": None if self.shape is None else list(self.shape)}


@dataclass(frozen=True)
class Contents:
    """All tensors of a model or checkpoint, in its order."""

    source: str  # the class of a module, or the text of a TARGET or path
    is_checkpoint: bool
    tensors: dict[str, NamedTensor]
    notes: tuple[str, ...] = ()
    is_converted: bool = False  # whether transformers renames tensors of the model's checkpoints
    config: dict[str, Any] | None = field(default=None, repr=False)
    format: str = ""  # of quantized weights, in the config of a model that is built without it
    format_bytes: int | None = None  # of all tensors in that format

    @property
    def counted(self) -> Iterator[NamedTensor]:
        """The tensors, each once: further names of tied tensors are left out."""
        return (tensor for tensor in self.tensors.values() if tensor.tied_to is None)

    @property
    def num_tensors(self) -> int:
        """The number of tensors, tied ones counted once."""
        return sum(1 for _ in self.counted)

    @property
    def num_values(self) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.num_values for tensor in self.counted)

    @property
    def num_parameters(self) -> int | None:
        """The number of elements of parameters; None for a file, which has no kinds of tensors."""
        if self.is_checkpoint:
            return None
        return sum(t.num_values for t in self.counted if t.kind == "parameter")

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.counted)

    @property
    def saved(self) -> Contents:
        """The contents without non-persistent buffers, which a checkpoint does not have."""
        saved = {name: t for name, t in self.tensors.items() if t.kind != "non-persistent buffer"}
        return replace(self, tensors=saved)

    def to_dict(self) -> dict[str, Any]:
        """The totals, as a dict for JSON."""
        return {
            "source": self.source,
            "is_checkpoint": self.is_checkpoint,
            "num_tensors": self.num_tensors,
            "num_values": self.num_values,
            "num_parameters": self.num_parameters,
            "size_bytes": self.size_bytes,
        }


for _class in (NamedTensor, Contents):
    publish(_class, "torchfake.inspect.contents")


def contents(
    source: Source, *, overrides: Sequence[str] = (), dtype: torch.dtype | None = None
) -> Contents:
    """The tensors of `source`; a TARGET is built without its weights.

    Args:
        source: a module; a TARGET; the path of a checkpoint. A directory with weights and a config
            is a checkpoint.
        overrides: changes of a TARGET's config or arguments, each as ``key=value``.
        dtype: the floating point dtype to build a TARGET in.

    Raises:
        TargetError: if `source` is none of these, or cannot be built, or if overrides are given for
            a module or a checkpoint.
        CheckpointError: if a checkpoint cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source)
        if not is_checkpoint(text):
            target = resolve(text, overrides=overrides)
            return module_contents(build(target, dtype=dtype).module, text, target.notes)
        _check_no_overrides(text, overrides)
        return _checkpoint_contents(text)
    if not isinstance(source, nn.Module):
        raise TargetError(
            f"a module, a TARGET or the path of a checkpoint is needed, not {type(source).__name__}"
        )
    _check_no_overrides(type(source).__name__, overrides)
    return module_contents(source, type(source).__name__, ())


def is_checkpoint(text: str) -> bool:
    """Whether a text is the path of a checkpoint, existing or not, rather than a TARGET."""
    path = Path(text)
    if path.is_dir():
        holds_weights = any(file.name.endswith(_CHECKPOINT_SUFFIXES) for file in path.iterdir())
        return holds_weights or not (path / "config.json").exists()
    return text.endswith(_CHECKPOINT_SUFFIXES) or (path.is_file() and path.suffix != ".json")


def _check_no_overrides(name: str, overrides: Sequence[str]) -> None:
    if overrides:
        raise TargetError(f"{name} is not built from a config, so {overrides[0]!r} changes nothing")


def _checkpoint_contents(text: str) -> Contents:
    tensors: dict[str, NamedTensor] = {}
    first_names: dict[Any, str] = {}  # by range of bytes
    notes = []
    for name, entry in _open(text).items():
        if entry.problem is None:
            tensors[name] = _file_tensor(name, _read(name, entry), first_names)
        else:
            shape = entry.shape or None
            tensors[name] = NamedTensor(name, shape, None, 0, None, None, None)
            notes.append(f"{text}: {name} {entry.problem}")
    has_config = (Path(text) / "config.json").is_file()
    config = read_config(text) if has_config else None
    return Contents(text, True, tensors, tuple(notes), config=config)


def _open(text: str) -> dict[str, load.Entry]:
    try:
        return load.open_checkpoint(text)
    except RuntimeError as error:  # raised by safetensors if a file cannot be mapped
        raise CheckpointError(f"{text} cannot be read: {one_line(error)}") from error


def _read(name: str, entry: load.Entry) -> torch.Tensor:
    """The tensor, memory-mapped: its values are not read."""
    try:
        return entry.read()
    except Exception as error:  # a damaged file may raise any error
        raise CheckpointError(f"{name} cannot be read: {one_line(error)}") from error


def _file_tensor(name: str, tensor: torch.Tensor, first_names: dict[Any, str]) -> NamedTensor:
    """The record of a tensor in a file; names for the same range of bytes are one tied tensor."""
    key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
    first_name = first_names.setdefault(key, name) if tensor.numel() else name
    tied = None if first_name == name else first_name
    return NamedTensor(
        name, tuple(tensor.shape), dtype_name(tensor.dtype), tensor.nbytes, None, None, tied
    )


def module_contents(module: nn.Module, text: str, notes: Sequence[str]) -> Contents:
    """The tensors of a module; `text` names it."""
    first_names: dict[int, str] = {}  # by the tensor's id
    tensors = {
        name: _module_tensor(name, tensor, kind, first_names)
        for name, tensor, kind in _tensors_of(module)
    }
    converted = is_transformers_model(module) and converts_checkpoints(module)
    name, weights = described_format(module), described_weights(module)
    size = None if weights is None else weights.num_bytes
    config = config_of(module)
    return Contents(text, False, tensors, tuple(notes), converted, config, name, size)


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, str]]:
    for path, child in _modules_of(module, "", ()):
        for name, parameter in child._parameters.items():
            if parameter is not None:
                yield join_name(path, name), parameter, "parameter"
        for name, buffer in child._buffers.items():
            if buffer is not None:
                unsaved = name in child._non_persistent_buffers_set
                yield (
                    join_name(path, name),
                    buffer,
                    "non-persistent buffer" if unsaved else "buffer",
                )


def _modules_of(
    module: nn.Module, path: str, ancestors: tuple[nn.Module, ...]
) -> Iterator[tuple[str, nn.Module]]:
    """All modules under all of their names; a module that contains itself is entered once."""
    yield path, module
    for name, child in module._modules.items():
        if child is not None and not any(child is m for m in (*ancestors, module)):
            yield from _modules_of(child, join_name(path, name), (*ancestors, module))


def _module_tensor(
    name: str, tensor: torch.Tensor, kind: str, first_names: dict[int, str]
) -> NamedTensor:
    first_name = first_names.setdefault(id(tensor), name)
    lazy = is_lazy(tensor)
    return NamedTensor(
        name,
        None if lazy else tuple(tensor.shape),
        dtype_name(tensor.dtype),
        0 if lazy else held_bytes(tensor),
        kind,
        tensor.requires_grad if kind == "parameter" else False,
        None if first_name == name else first_name,
    )
