"""Which patches are installed while a mode is on, counted over all modes of the process.

Input: modes entered and left. Output: torch with and without the replacements. Invariant: what only
fake CUDA needs is replaced only while a mode has fake CUDA; when the last mode of the process is
left, every original is back. Called by: :mod:`torchfake.fake`, when a mode is entered or left.
"""

from __future__ import annotations

import threading

from torchfake._patches import autocast, cuda, data_sources, device_arguments
from torchfake._patches.patch import PatchSet
from torchfake._torch.distributed_patches import report_devices_of_shards

_lock = threading.Lock()

_for_any_mode, _for_fake_cuda = PatchSet(), PatchSet()


def install_patches(*, fake_cuda: bool) -> None:
    """Count one more mode; the first one installs the patches."""
    report_devices_of_shards()
    with _lock:
        _for_any_mode.install([*autocast.PATCHES, *data_sources.PATCHES, *device_arguments.PATCHES])
        if fake_cuda:
            _for_fake_cuda.install([*cuda.PATCHES, *device_arguments.PATCHES_FOR_FAKE_CUDA])


def uninstall_patches(*, fake_cuda: bool) -> None:
    """Count one mode less; the last one restores the originals."""
    report_devices_of_shards()  # it may have been imported meanwhile
    with _lock:
        if fake_cuda:  # in reverse order: both replace torch.asarray
            _for_fake_cuda.uninstall()
        _for_any_mode.uninstall()
