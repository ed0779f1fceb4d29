"""What is replaced in torch as long as a mode is on or a fake lives, with a mode on or not.

Input: whether there is a mode or a fake; modules of torch, as they are imported. Output: torch's
tracers, its DTensor and DDP know of fakes, or are as torch has them. Invariant: once there is
neither a mode nor a fake, every original is back.

Fakes outlive their modes. What C++ or a tracer does with them then is dispatched to nobody: which
device a DTensor of one reports, whether a compiled function is compiled for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from torchfake._operators.higher_order import kernels
from torchfake._patches import compiled
from torchfake._patches.patch import Patch, PatchSet
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import distributed_patches, subclass
from torchfake._torch.compiler import frames, higher_order
from torchfake._torch.compiler.python_functions import Replacement


def _is_class_of_fakes(cls: type) -> bool:
    return issubclass(cls, FakeTensor)


replacements: dict[str, Callable[[], Iterable[Replacement]]] = {
    "torch": lambda: [
        subclass.traced_by_make_fx(_is_class_of_fakes),
        higher_order.trees_in_cond(kernels.is_for_fakes),
    ],
    distributed_patches.DTENSORS: distributed_patches.devices_of_shards,
    frames.TRACER: compiled.patches_of_tracer,
    higher_order.FLEX_ATTENTION_MODULE: compiled.patches_of_attention,
}
"""What is replaced once a module of torch has been imported, by its name: owners, names and what
makes a replacement of an original. ``deferred`` adds to it."""

_sets: dict[str, PatchSet] = {}


@cache
def _patches_of(name: str) -> list[Patch]:
    """What is replaced once the module is there."""
    return [Patch(*each) for each in replacements[name]()]


class Watch:
    """Python's import, watched for these modules of torch.

    Args:
        as_outside: makes the context in which a tracer is imported, which reads torch's functions.
        update: called when one of the modules has been imported.
    """

    def __init__(
        self, as_outside: Callable[[], AbstractContextManager[Any]], update: Callable[[], None]
    ) -> None:
        self._finder = frames.ImportWatch(as_outside, replacements, update)

    def update(self, is_needed: bool) -> None:
        """Have the patches installed that are needed and can be, and all others removed."""
        self._finder.set_on(is_needed)
        if not is_needed:
            uninstall()
            return
        for name in replacements:
            patches = _sets.get(name) or _sets.setdefault(name, PatchSet())
            if not patches.is_installed and self._finder.is_imported(name):
                patches.install(_patches_of(name))


def uninstall() -> None:
    """Restore every original. What was installed last is removed first."""
    for patches in reversed(_sets.values()):
        patches.uninstall()
