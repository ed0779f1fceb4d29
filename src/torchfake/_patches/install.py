"""Which patches are installed, for the modes that are on in the process.

Input: modes entered and left. Output: torch with and without the replacements. Invariant: what only
fake CUDA needs is replaced only while a mode has fake CUDA; when the last mode of the process is
left, every original is back. Called by: ``_patches/entry``, when a mode is entered or left.
"""

from __future__ import annotations

import threading

from torchfake._contexts import holding
from torchfake._core import modes
from torchfake._patches import (
    autocast,
    cuda,
    device_arguments,
    wrapper_devices,
)
from torchfake._patches.data import copies, data_sources, files
from torchfake._patches.patch import Patch, PatchSet
from torchfake._tensor.classes import FakeParameter
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch.distributed_patches import report_devices_of_shards
from torchfake._torch.subclass import let_make_fx_trace

_lock = threading.RLock()

_for_any_mode, _for_fake_cuda = PatchSet(), PatchSet()

added_for_any_mode: list[Patch] = []
"""By files that enter modes themselves, as ``_patches/threads`` does."""


def update_patches() -> None:
    """Install the patches that the modes need that are on, on any thread, and remove all others."""
    report_devices_of_shards()
    let_make_fx_trace(FakeTensor, FakeParameter)
    if _lock._is_owned():  # type: ignore[attr-defined]
        return  # an abandoned mode was found in the middle of this: the next entry or exit does it
    with holding(_lock):
        has_cuda = any(state.cuda is not None for state in modes.on_any_thread.copy())
        if not has_cuda:  # first: both replace torch.asarray
            _for_fake_cuda.uninstall()
        if not modes.on_any_thread:
            _for_any_mode.uninstall()
            return
        _for_any_mode.install(
            [
                *autocast.PATCHES,
                *copies.PATCHES,
                *data_sources.PATCHES,
                *device_arguments.PATCHES,
                *files.PATCHES,
                *files.safetensors_patches(),
                *added_for_any_mode,
            ]
        )
        if has_cuda:
            _for_fake_cuda.install(
                [*cuda.PATCHES, *device_arguments.PATCHES_FOR_FAKE_CUDA, *wrapper_devices.PATCHES]
            )
