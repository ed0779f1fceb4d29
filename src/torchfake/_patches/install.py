"""Installation of the patches that the active modes of the process need.

Input: modes entered and left. Output: torch with and without the replacements. Invariant: patches
for fake devices are installed only while a mode has fake devices, those for one device type only
while a mode has that type; all are removed when the last mode of the process is left. Patches that
fakes need as long as they live are in ``_patches/while_fakes_live``.
"""

from __future__ import annotations

import sys
import threading
from functools import cache

from torchfake._core import living, modes
from torchfake._core.modes import DEFERRED_AS_META, ModeState
from torchfake._operators.composites import own_autograd
from torchfake._patches import (
    autocast,
    caches,
    device_arguments,
    libraries,
    while_fakes_live,
    wrapper_devices,
)
from torchfake._patches.accelerators import cuda, others, parallel, stand_ins, tables
from torchfake._patches.patch import Patch, PatchSet, entered
from torchfake._patches.sources import (
    conjugate_views,
    copies,
    data_sources,
    draws,
    files,
    real_storages,
    subclasses,
    uninitialized_parameters,
)
from torchfake._torch import backends, dispatch_keys, dispatcher
from torchfake._torch.contexts import Restoring, holding, shared

_lock = shared(threading.RLock())

_for_any_mode, _for_named_devices, _for_ordinals = PatchSet(), PatchSet(), PatchSet()
_by_device_type: dict[str, PatchSet] = {}


class as_outside_modes(Restoring):
    """Context in which torch is as outside all modes, for imports that read torch's functions."""

    def __init__(self) -> None:
        self._lock = holding(_lock)
        self._slot = dispatcher.in_fake_slot(None)

    def change(self) -> None:
        self._lock.change()
        self._slot.change()
        for patched in reversed(entered):  # first: they wrap the patches of modes
            patched.uninstall()
        while_fakes_live.uninstall()
        _install_for(set())

    def restore(self) -> None:
        self._slot.restore()
        self._lock.restore()
        update_patches()
        for patched in entered:
            patched.install()


def update_patches() -> None:
    """Install the patches that the active modes of all threads and the live fakes need. Remove the
    others, except those that remove themselves when the last fake or mode dies.
    """
    if _lock._is_owned():  # type: ignore[attr-defined]
        return  # an abandoned mode was found during an update: the next entry or exit updates
    with holding(_lock):
        _install_for(modes.on_any_thread.copy())
        if living.state.find() is not None:
            _for_fakes.install()
            for operator in dispatch_keys.new_with_own_autograd():
                own_autograd.register(operator)


def _expect_fakes() -> None:
    if not modes.on_any_thread:  # a mode that is being entered does this itself
        update_patches()


_for_fakes = while_fakes_live.Watched(as_outside_modes, update_patches)
living.state.on_first = _expect_fakes

_remembered = libraries.RememberedDevices()


def _install_for(on: set[ModeState]) -> None:
    """Install the patches that the modes `on` need, and remove all others."""
    types, any_named = set(), False
    for state in on:
        any_named = any_named or state.mark == DEFERRED_AS_META
        if state.accelerator is not None:
            types.add(state.accelerator.device_type)
    any_named = any_named or bool(types)
    misread = any_named and (types or {"cuda"}) != {backends.own_accelerator_type()}
    _remove_unneeded(types, any_named, misread)
    if types != _remembered.types:
        _remembered.update(types)
    if on and not _for_any_mode.is_installed:
        _caches.note()
        _for_any_mode.install([*PATCHES_FOR_ANY_MODE, *libraries.patches_of_imported()])
    elif not on:
        if _for_any_mode.is_installed:
            _caches.forget_new()
        _for_any_mode.uninstall()  # also after an interrupted installation
    if any_named:
        _for_named_devices.install(_patches_for_named_devices())
    if misread:
        _for_ordinals.install([*device_arguments.patches_for_ordinals(), stand_ins.DEVICE])
    for device_type in types:
        patches = _by_device_type.setdefault(device_type, PatchSet())
        if not patches.is_installed:
            patches.install(_patches_for(device_type))


_caches = caches.Caches()


def _remove_unneeded(types: set[str], any_named: bool, misread: bool) -> None:
    """Remove unneeded patches, the last installed first: some replace the same attribute."""
    for device_type, patches in _by_device_type.items():
        if device_type not in types:
            patches.uninstall()
    if not misread:
        _for_ordinals.uninstall()
    if not any_named:
        _for_named_devices.uninstall()


PATCHES_FOR_ANY_MODE = [
    *autocast.PATCHES,
    *caches.PATCHES,
    *copies.PATCHES,
    *data_sources.PATCHES,
    *device_arguments.PATCHES,
    *draws.PATCHES,
    *files.PATCHES,
    *real_storages.PATCHES,
    *uninitialized_parameters.PATCHES,
    *conjugate_views.PATCHES,
    *subclasses.PATCHES,
    *libraries.PATCHES,
]
"""Modules that enter modes themselves, such as ``_patches/threads``, add their patches."""


@cache
def _patches_for_named_devices() -> list[Patch]:
    return [
        *device_arguments.PATCHES_FOR_NAMED_DEVICES,
        *stand_ins.CLASSES,
        *others.PATCHES,
        *tables.patches_of(others.ACCELERATOR),
        *wrapper_devices.PATCHES,
    ]


_known_patches: dict[str, tuple[int, str, list[Patch]]] = {}


def _patches_for(device_type: str) -> list[Patch]:
    """The patches for a device type, searched again after imports, which may add names to patch."""
    state = len(sys.modules), backends.name_of_privateuse1()
    known = _known_patches.get(device_type)
    if known is None or known[:2] != state:
        known = _known_patches[device_type] = (*state, _find_patches_for(device_type))
    return known[2]


def _find_patches_for(device_type: str) -> list[Patch]:
    if device_type == "cuda":
        return [*_patches_of_cuda(), *stand_ins.CUDA_TENSORS, *parallel.PATCHES]
    found = [*others.TABLES]
    if device_type == backends.name_of_privateuse1():
        found.append(others.table_of_privateuse1())
    patches = [p for t in found if t.device_type == device_type for p in tables.patches_of(t)]
    return [*patches, *stand_ins.missing_module(device_type)]


def _patches_of_cuda() -> list[Patch]:
    of_others = [t for t in others.TABLES if t.device_type == "cuda"]
    return [p for t in (cuda.TABLE, *of_others) for p in tables.patches_of(t)]
