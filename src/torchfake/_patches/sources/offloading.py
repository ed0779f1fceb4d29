"""Weights that accelerate offloads to the disk, inside a mode: a fake has no bytes to write.

Input: accelerate's functions that write and load such weights. Output: versions that keep a fake in
memory, and list it in the index as accelerate lists weights that it wrote. Invariant: known and
deferred values are written, as real ones are; loaders made in a mode find kept fakes as if they
were in the folder, inside the mode and after it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torchfake._core import modes
from torchfake._patches.patch import replacing
from torchfake._tensor.fake_tensor import FakeTensor

_kept: dict[tuple[str, str], FakeTensor] = {}
"""Fakes that were not written, by folder and name."""


@replacing
def _offload_weight(
    original: Any, weight: Any, weight_name: str, offload_folder: Any, index: Any = None
) -> Any:
    key = os.path.realpath(offload_folder), weight_name
    _kept.pop(key, None)  # a weight of the same name that was offloaded before
    if modes.current() is None or not _has_no_values(weight):
        return original(weight, weight_name, offload_folder, index=index)
    _kept[key] = weight.detach()
    if index is not None:
        name = str(weight.dtype).removeprefix("torch.")
        index[weight_name] = {"dtype": name, "shape": list(weight.shape)}
    return index


def _has_no_values(weight: Any) -> bool:
    if not isinstance(weight, FakeTensor):
        return False
    storage = weight._fake_storage
    return storage.deferred is None and storage.is_unknown


@replacing
def _load_offloaded_weight(original: Any, weight_file: Any, weight_info: Any) -> Any:
    folder, name = os.path.split(os.path.realpath(weight_file))
    kept = _kept.get((folder, name.removesuffix(".dat")))
    if kept is None or modes.current() is None:
        return original(weight_file, weight_info)
    return kept.clone()


@replacing
def _init_loader(original: Any, /, loader: Any, *args: Any, **kwargs: Any) -> None:
    """``OffloadedWeightsLoader.__init__``: tensors in memory have priority over the folder."""
    original(loader, *args, **kwargs)
    if modes.current() is not None and loader.save_folder is not None:
        folder = os.path.realpath(loader.save_folder)
        fakes = {name: _kept.get((folder, name)) for name in loader.index}
        kept = {name: fake for name, fake in fakes.items() if fake is not None}
        loader.state_dict = {**kept, **loader.state_dict}


MODULE = "accelerate.utils.offload"
_FUNCTIONS = {
    "offload_weight": _offload_weight,
    "load_offloaded_weight": _load_offloaded_weight,
}


def of_imported() -> Iterator[tuple[Any, str, Any]]:
    """The owner, the name and the replacement of each patch of accelerate, which is imported: of
    both functions in every module that has imported them by name.
    """
    defining = sys.modules[MODULE]
    yield defining.OffloadedWeightsLoader, "__init__", _init_loader
    for module in _importers():
        for name, make_replacement in _FUNCTIONS.items():
            if module.__dict__.get(name) is vars(defining)[name]:
                yield module, name, make_replacement


_seen: set[str] = set()  # the names of modules that were looked at
_importing: set[str] = {"__main__"}


def _importers() -> list[ModuleType]:
    """The modules that have imported one of the functions by name. Each is looked at once, when a
    mode is first entered after its import, for there are thousands; the main program always.
    """
    new = sys.modules.keys() - _seen
    _seen.update(new)
    found = {name for name in new if _FUNCTIONS.keys() & _namespace(name).keys()}
    _importing.update(found)
    modules = [sys.modules.get(name) for name in _importing]
    return [module for module in modules if isinstance(module, ModuleType)]


def _namespace(name: str) -> dict[str, Any]:
    module = sys.modules.get(name)
    return module.__dict__ if isinstance(module, ModuleType) else {}
