"""Modules that are imported in a mode: their code runs outside of it.

Input: the code of a module, when it is first imported. Output: the module as it is when it is
imported before the mode. Invariant: no module has a fake because of the place of an ``import``.

A module is kept by the process: whoever imports it later gets what was made the first time, and
libraries import their parts when these are first asked for. So what the code of a module makes
(constants, tables, answers to "is there a GPU?") must not depend on the mode that happens to be on.
Scripts that ``runpy`` or ``exec`` runs are not kept, and run in the mode.
"""

from __future__ import annotations

from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from typing import Any
from zipimport import zipimporter

from torchfake._core import memory, modes
from torchfake._patches import entry, install
from torchfake._patches.patch import Patch, replacing_in_modes
from torchfake._random import lazy_generators
from torchfake._recording import generator_sync
from torchfake._torch import backends
from torchfake._torch.contexts import Restoring


class _drawing_as_eager(Restoring):
    """Context: real draws go on where eager would. Without one, generators are where they were
    before, as after draws of fakes.
    """

    _lent: Any = None

    def change(self) -> None:
        if modes.is_recording():
            self._lent = generator_sync.lend_all()
        else:
            self._lent = lazy_generators.position().lend_global()

    def restore(self) -> None:
        if self._lent is not None:
            self._lent()


class _on_real_devices(Restoring):
    """Context: the default device is the CPU, if the one that is set exists in the mode alone."""

    _context: Any = None

    def change(self) -> None:
        device = backends.context_device()
        if device is not None and not memory.is_available(device):
            self._context = backends.device_contexts.DeviceContext("cpu")
            self._context.__enter__()

    def restore(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)


@replacing_in_modes
def _outside_modes(original: Any, loader: Any, module: Any) -> None:
    """``exec_module`` of a loader, which runs the code of a module."""
    with _drawing_as_eager(), entry.without_modes(), _on_real_devices():
        original(loader, module)
    install.update_patches()  # the module may have registered operators


install.PATCHES_FOR_ANY_MODE += [
    Patch(loader, "exec_module", _outside_modes)
    for loader in (SourceFileLoader, SourcelessFileLoader, zipimporter)
]
