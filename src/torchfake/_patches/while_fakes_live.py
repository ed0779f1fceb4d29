"""Replacements, in torch and in libraries, that stay as long as a mode is on or a fake lives.

Input: the sign that there is a mode or a fake (``_core/living``); modules of torch, as they are
imported. Output: torch's tracers, DTensor and DDP, with and without support for fakes. Invariant:
once there is neither a mode nor a fake, every original is back.

Fakes outlive their modes. Some decisions about them are then made without a dispatch, by C++ or a
tracer: which device a DTensor of fakes reports, whether a function is compiled for a fake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from torchfake._core import living
from torchfake._operators.higher_order import kernels
from torchfake._patches import compiled, wrapper_devices
from torchfake._patches.patch import Patch, PatchSet
from torchfake._patches.sources import safetensors_files
from torchfake._tensor import gradient_devices
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import subclass
from torchfake._torch.compiler import frames, higher_order
from torchfake._torch.compiler.python_functions import Replacement
from torchfake._torch.distributed import patches as distributed_patches

replacements: dict[str, Callable[[], Iterable[Replacement]]] = {
    "torch": lambda: [
        subclass.traced_by_make_fx(lambda cls: issubclass(cls, FakeTensor)),
        higher_order.trees_in_cond(kernels.is_for_fakes),
        (torch, "get_device", wrapper_devices.index_of_fakes),
        *gradient_devices.replacements(),
    ],
    distributed_patches.DTENSORS: distributed_patches.devices_of_shards,
    frames.TRACER: compiled.patches_of_tracer,
    higher_order.FLEX_ATTENTION_MODULE: compiled.patches_of_attention,
    safetensors_files.SAFETENSORS: safetensors_files.patches_of_writing,
}
"""By name of a module: the replacements to install once it has been imported, as owners, names and
functions from an original to its replacement. ``deferred``, ``scripts``, ``libraries`` add more."""

_sets: dict[str, PatchSet] = {}


@cache
def _patches_of(name: str) -> list[Patch]:
    """The patches to install once the module `name` has been imported."""
    return [Patch(*each) for each in replacements[name]()]


class Watched:
    """The replacements, each installed once the module of torch that it is for has been imported.

    Args:
        as_outside: makes the context to import a tracer in, since it reads torch's functions.
        update: called when one of the modules has been imported.
    """

    def __init__(
        self, as_outside: Callable[[], AbstractContextManager[Any]], update: Callable[[], None]
    ) -> None:
        self._finder = frames.ImportWatch(as_outside, replacements, update)

    def install(self) -> None:
        """Install the patches of all imported modules, until the last fake and mode have died."""
        to_undo = living.state.to_undo
        self._finder.set_on(to_undo)
        for name in replacements:
            patches = _sets.get(name) or _sets.setdefault(name, PatchSet())
            if not patches.is_installed and self._finder.is_imported(name):
                patches.install(_patches_of(name), to_undo)


def uninstall() -> None:
    """Restore every original for a while, the last replaced first."""
    for patches in reversed(_sets.values()):
        patches.uninstall()
