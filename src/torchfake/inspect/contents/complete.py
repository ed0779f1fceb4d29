"""Whether the tensors of a checkpoint are those of the model that its config describes.

Input: a model, and the tensors in the headers of its checkpoint. Output: what is missing, has
another shape, or is unknown to the model. Invariant: what the library leaves out or ignores when it
loads the checkpoint does not count, nor does a tensor that is saved by another of its names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from torchfake._files.transformers_checkpoints import is_transformers_model, renames_any
from torchfake.inspect.contents.changes import num_distinct
from torchfake.inspect.contents.diff import compare
from torchfake.inspect.contents.tensors import Contents, NamedTensor, module_contents
from torchfake.inspect.records.module_names import fold_names
from torchfake.inspect.records.tensor_specs import dtype_name
from torchfake.inspect.records.units import counts_text, number_text
from torchfake.inspect.targets.saved_tensors import SavedTensor


class CheckpointState(NamedTuple):
    """What is wrong with a checkpoint."""

    text: str = ""  # "" if nothing is
    loads: bool = True  # whether all tensors of the model can be read from it
    notes: tuple[str, ...] = ()


WHOLE = CheckpointState()
"""The state of a checkpoint with which nothing is wrong, or that was not read."""

NOT_COMPARED = (
    "not compared with the model of its config: transformers renames, merges or splits tensors "
    "when it loads them"
)


_OTHER_NAMES = (
    "transformers would initialize these tensors anew: rename them, as DistributedDataParallel and "
    "torch.compile save their module with a prefix"
)


def state_of_checkpoint(module: nn.Module, saved: dict[str, SavedTensor]) -> CheckpointState:
    """Compare the headers of a checkpoint with the model that its config describes."""
    if is_transformers_model(module) and renames_any(module, saved):
        return CheckpointState(notes=(NOT_COMPARED,))
    model = module_contents(module, "", ())
    held = {name: _tensor(name, each) for name, each in saved.items()}
    found = compare(model.saved, Contents("", True, held))
    if found.prefix is not None and is_transformers_model(module):
        prefix, own = found.prefix, f"{module.base_model_prefix}."
        if not {prefix.in_a, prefix.in_b} <= {"", own}:  # which transformers adds or removes
            number = number_text(len(prefix.pairs), "name")
            has = f"have the prefix {prefix.in_b!r}" if prefix.in_b else f"lack {prefix.in_a!r}"
            text = f"checkpoint does not load: {number} {has}"
            return CheckpointState(text, loads=False, notes=(_OTHER_NAMES,))
    reshaped = [change for change in found.changed if "shape" in change.what]
    missing = [*_loaded(found.only_a, getattr(module, "_keys_to_ignore_on_load_missing", None))]
    patterns = getattr(module, "_keys_to_ignore_on_load_unexpected", None)
    unknown = [*_loaded(found.only_b, [*(patterns or ()), *_unsaved(model)])]
    counted = [
        (num_distinct(missing), "missing", missing),
        (len(reshaped), "of another shape", reshaped),
        (len(unknown), "unknown", unknown),
    ]
    text = counts_text(((number, what) for number, what, _ in counted), "tensor")
    if not text:
        return WHOLE
    loads = not (missing or reshaped)
    about = "with tensors that its config's model lacks"
    if not loads:
        about = "incomplete" if missing else "does not match its config"
    notes = [f"{what}: {_names(tensors)}" for number, what, tensors in counted if number]
    return CheckpointState(f"checkpoint {about}: {text}", loads, (*notes,))


def _tensor(name: str, saved: SavedTensor) -> NamedTensor:
    dtype = None if saved.dtype is None else dtype_name(saved.dtype)
    return NamedTensor(name, saved.shape, dtype, 0, None, None, None)


def _loaded(tensors: Iterable[Any], ignored: Iterable[str] | None) -> Iterator[Any]:
    """The tensors whose names no pattern ignores."""
    patterns = [re.compile(pattern) for pattern in ignored or ()]
    return (each for each in tensors if not any(p.search(each.name) for p in patterns))


def _unsaved(model: Contents) -> Iterator[str]:
    """Patterns of buffers that are not saved any more, which older checkpoints have for each layer:
    ``rotary_emb.inv_freq``.
    """
    for name, tensor in model.tensors.items():
        if tensor.kind == "non-persistent buffer":
            yield rf"(^|\.){re.escape('.'.join(name.split('.')[-2:]))}$"


def _names(tensors: Iterable[Any]) -> str:
    """Up to three names."""
    folded = [name for name, _ in fold_names(each.name for each in tensors)]
    return ", ".join(folded[:3]) + (f" and {len(folded) - 3:,} more" if len(folded) > 3 else "")
