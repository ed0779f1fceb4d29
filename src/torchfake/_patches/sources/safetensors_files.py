"""Files of safetensors, opened inside a mode: no values are read.

Input: the arguments of functions of safetensors. Output: fakes; deferred fakes refer to bytes of
the file, or to a copy of bytes in memory. Invariant: outside a mode, or on another thread,
each is the original.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from torchfake._core import modes
from torchfake._patches.patch import replacing
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch.compiler.python_functions import Replacement
from torchfake.errors import UnknownValueError


class _OnDevice:
    """A file of safetensors opened for another device than the CPU. Tensors are read on the CPU and
    moved by torch, since the library would copy them into pinned memory.
    """

    def __init__(self, file: Any, device: Any) -> None:
        self._file = file
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _OnDevice:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    def get_tensor(self, name: str) -> Any:
        return self._file.get_tensor(name).to(self._device)

    def get_tensors(self) -> dict[str, Any]:
        return {name: value.to(self._device) for name, value in self._file.get_tensors().items()}

    def get_slice(self, name: str) -> Any:
        return _SliceOnDevice(self._file.get_slice(name), self._device)


class _SliceOnDevice:
    def __init__(self, slice_: Any, device: Any) -> None:
        self._slice = slice_
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slice, name)

    def __getitem__(self, index: Any) -> Any:
        return self._slice[index].to(self._device)


def _open_without_data(original: Any) -> Any:
    """``safetensors.safe_open``: the file is mapped on the CPU, whatever the arguments say."""

    @functools.wraps(original, updated=())
    def replacement(filename: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
        if modes.current() is None or framework not in ("pt", "torch", "pytorch"):
            return original(filename, framework, device, **options)
        file = original(filename, framework, "cpu")
        return file if str(device) == "cpu" else _OnDevice(file, device)

    return replacement


_HOLDERS = (
    "safetensors", "safetensors.torch", "accelerate.utils.modeling", "accelerate.utils.offload",
    "transformers.integrations.accelerate", "transformers.modeling_layers",
    "transformers.modeling_utils",
)  # fmt: skip
"""Modules that hold ``safe_open`` by a name of their own. Others call the original, which maps the
file for the CPU, and reads it for other devices."""


@replacing
def _deferred_tensors(original: Any, safeview: Any) -> dict[str, torch.Tensor]:
    """``safetensors.torch._view2torch``, by which ``load(bytes)`` makes real tensors: a deferred
    mode records copies of them.
    """
    tensors: dict[str, torch.Tensor] = original(safeview)
    return {k: t.clone() for k, t in tensors.items()} if modes.is_recording() else tensors


@replacing
def _refusing_fakes(original: Any, /, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """How ``safetensors.torch`` reads the tensors that it writes, from their addresses: an error
    that this raised for a fake would arrive as ``ctypes.ArgumentError``.
    """
    if isinstance(tensors, dict):
        _check_have_values(tensors)
    return original(tensors, *args, **kwargs)


def _check_have_values(tensors: dict[str, Any]) -> None:
    fakes = [n for n, t in tensors.items() if isinstance(t, FakeTensor) and not is_deferred_fake(t)]
    if fakes:
        others = f" and {len(fakes) - 1} more" if fakes[1:] else ""
        raise UnknownValueError(
            f"safetensors writes values, and fakes have none: {fakes[0]!r}{others}. In a mode, "
            'write nothing (TrainingArguments: save_strategy="no"), or use torch.save(), which '
            "keeps fakes as they are (torchfake.is_fake(tensor)). For files with values, build the "
            "model with torchfake.deferred_init and write it with torchfake.save_materialized"
        )


def patches_of_writing() -> list[Replacement]:
    """The replacements in ``safetensors.torch``, which has been imported, for as long as fakes
    live: private functions, since other modules hold ``save_file`` by names of their own. Checked
    in safetensors 0.8.
    """
    module = sys.modules[SAFETENSORS]
    names = [name for name in ("_flatten", "_flatten_as_ptr") if hasattr(module, name)]
    return [(module, name, _refusing_fakes) for name in names]


SAFETENSORS = "safetensors.torch"

OF_LIBRARIES = [
    *((holder, "safe_open", _open_without_data) for holder in _HOLDERS),
    ("safetensors.torch", "_view2torch", _deferred_tensors),
]
"""The patches of safetensors, if it is imported: see ``_patches/libraries``."""
