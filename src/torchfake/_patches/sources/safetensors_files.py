"""Files of safetensors, opened inside a mode: no values are read.

Input: what the functions of safetensors are given. Output: fakes; deferred ones refer to their
bytes in the file, or to a copy of bytes in memory. Invariant: outside a mode, or on another thread,
each is the original.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfake._core import modes


class _OnDevice:
    """A file of safetensors that was opened for another device than the CPU: the library would
    copy from it into pinned memory.
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
    """``safetensors.safe_open``: the file is mapped, on the CPU, however it was to be read."""

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
"""Modules with a name ``safe_open`` of their own. Where there is another, the file is read: for the
CPU it is mapped in any case."""


def _deferred_tensors(original: Any) -> Any:
    """``safetensors.torch._view2torch``, by which ``load(bytes)`` makes real tensors. Of these a
    deferred mode records copies.
    """

    @functools.wraps(original)
    def replacement(safeview: Any) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = original(safeview)
        return {k: t.clone() for k, t in tensors.items()} if modes.is_recording() else tensors

    return replacement


OF_LIBRARIES = [
    *((holder, "safe_open", _open_without_data) for holder in _HOLDERS),
    ("safetensors.torch", "_view2torch", _deferred_tensors),
]
"""The patches of safetensors, if that is imported: see ``_patches/libraries``."""
