"""Weights that accelerate offloads to the disk, inside a mode: a fake has no bytes to write.

Input: accelerate's functions that write and load such weights. Output: versions that keep a fake in
memory, where it takes none, and list it in the index as accelerate lists what it wrote. Invariant:
values that are known or deferred are written, as real ones are; a folder of which fakes were kept
is read as if it had them, inside the mode and after it, by loaders made in a mode.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from torchfake._core import modes
from torchfake._tensor.fake_tensor import FakeTensor

_kept: dict[tuple[str, str], FakeTensor] = {}
"""By folder and name."""


def _offload_weight(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(weight: Any, weight_name: str, offload_folder: Any, index: Any = None) -> Any:
        key = os.path.realpath(offload_folder), weight_name
        _kept.pop(key, None)  # the weight that was offloaded by this name before
        if modes.current() is None or not _has_no_values(weight):
            return original(weight, weight_name, offload_folder, index=index)
        _kept[key] = weight.detach()
        if index is not None:
            name = str(weight.dtype).removeprefix("torch.")
            index[weight_name] = {"dtype": name, "shape": list(weight.shape)}
        return index

    return replacement


def _has_no_values(weight: Any) -> bool:
    if not isinstance(weight, FakeTensor):
        return False
    storage = weight._fake_storage
    return storage.deferred is None and storage.is_unknown


def _init_loader(original: Any) -> Any:
    """``OffloadedWeightsLoader.__init__``: tensors in memory have priority over the folder."""

    @functools.wraps(original)
    def replacement(loader: Any, *args: Any, **kwargs: Any) -> None:
        original(loader, *args, **kwargs)
        if modes.current() is not None and loader.save_folder is not None:
            folder = os.path.realpath(loader.save_folder)
            fakes = {name: _kept.get((folder, name)) for name in loader.index}
            kept = {name: fake for name, fake in fakes.items() if fake is not None}
            loader.state_dict = {**kept, **loader.state_dict}

    return replacement


OF_LIBRARIES = [
    ("accelerate.utils.offload", "offload_weight", _offload_weight),
    ("accelerate.utils.modeling", "offload_weight", _offload_weight),
    ("accelerate.utils.offload", "OffloadedWeightsLoader.__init__", _init_loader),
]
"""The patches of accelerate, if that is imported: see ``_patches/libraries``."""
