"""The tensors of a checkpoint as a module: the names, shapes and dtypes in its headers.

Input: the path of a checkpoint, or tensors by name. Output: a module of fakes with these names,
whose submodules have the class names of a model's modules of the same names. Invariant: no value of
a tensor is read.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from torchfake._files import load
from torchfake._files.safetensors import DTYPES
from torchfake.errors import CheckpointError
from torchfake.fake import fake_mode
from torchfake.inspect.records.messages import one_line


class SavedTensor(NamedTuple):
    """Shape and dtype of a tensor of a checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    problem: str | None = None  # the reason if the dtype is None


def saved_tensors_in(text: str) -> dict[str, SavedTensor]:
    """The tensors of the checkpoint at a path.

    Raises:
        CheckpointError: if the checkpoint cannot be read.
    """
    try:
        entries = load.open_checkpoint(text)
    except RuntimeError as error:  # raised by safetensors if a file cannot be mapped
        raise CheckpointError(f"{text} cannot be read: {one_line(error)}") from error
    return {name: _saved(name, entry) for name, entry in entries.items()}


def _saved(name: str, entry: load.Entry) -> SavedTensor:
    if entry.problem is not None:
        return SavedTensor(entry.shape, None, entry.problem)
    try:
        tensor = entry.read()  # memory-maps the file: no values are read
    except Exception as error:  # a damaged file may raise any error
        raise CheckpointError(f"{name} cannot be read: {one_line(error)}") from error
    return SavedTensor(tuple(tensor.shape), tensor.dtype)


def tensor_of_header(shape: list[int], dtype: str) -> SavedTensor:
    """A tensor as the header of a safetensors file describes it."""
    found = _BY_NAME.get(dtype)
    problem = None if found is not None else f"is {dtype}, which torch does not have"
    return SavedTensor(tuple(shape), found, problem)


_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


def module_of_saved(
    tensors: dict[str, SavedTensor], model: nn.Module | None = None
) -> tuple[nn.Module, tuple[str, ...]]:
    """A module of fakes for the tensors of a checkpoint, and notes on tensors that are left out.

    Args:
        tensors: the tensors by name; dots separate modules.
        model: a model; submodules get the class names of its modules with the same names.
    """
    classes = _classes_of(model, tensors)
    root, notes = _module(classes.get("", "Checkpoint"), tensors, ""), []
    with fake_mode():
        for name, saved in tensors.items():
            owner = _owner(root, name, classes, tensors)
            if saved.dtype is None:
                notes.append(f"{name} {saved.problem}: not counted")
                continue
            made = torch.empty(saved.shape, dtype=saved.dtype)
            owner.register_parameter(
                name.rpartition(".")[2],
                nn.Parameter(made, requires_grad=saved.dtype.is_floating_point),
            )
    return root, tuple(notes)


def _owner(
    root: nn.Module, name: str, classes: dict[str, str], tensors: dict[str, SavedTensor]
) -> nn.Module:
    module, path = root, ""
    for part in name.split(".")[:-1]:
        path = f"{path}.{part}" if path else part
        if part not in module._modules:
            module._modules[part] = _module(classes.get(path), tensors, path)
        module = module._modules[part]  # type: ignore[assignment]
    return module


def _module(class_name: str | None, tensors: dict[str, SavedTensor], path: str) -> nn.Module:
    """A module with a class name; for numbered modules a ModuleList, whose blocks can be folded."""
    prefix = f"{path}." if path else ""
    parts = {n[len(prefix) :].partition(".")[0] for n in tensors if n.startswith(prefix)}
    if path and all(part.isdigit() for part in parts):
        return nn.ModuleList()
    made: nn.Module = _named_class(class_name or "Module")()
    return made


@cache
def _named_class(name: str) -> Any:
    return type(name, (nn.Module,), {})


def _classes_of(model: nn.Module | None, tensors: dict[str, SavedTensor]) -> dict[str, str]:
    """Class names by the names of modules in the checkpoint, which may lack the prefix that a model
    with a head has before its base model, or have it although the model does not.
    """
    if model is None:
        return {}
    own = {name: type(module).__name__ for name, module in model.named_modules()}
    prefix = getattr(model, "base_model_prefix", "")
    if prefix and not any(name.startswith(f"{prefix}.") for name in tensors):
        shorter = {k.removeprefix(f"{prefix}."): v for k, v in own.items() if k != prefix}
        return {**shorter, **own}
    if prefix and not hasattr(model, prefix):
        return {"": own[""], prefix: own[""], **{f"{prefix}.{k}": v for k, v in own.items() if k}}
    return own
