"""The device that a fake reports, and the carrier: the C++ device of its wrapper.

Input: a device as users write it, or a device from C++. Output: the carrier of the first, the fake
device that the second stands for. Invariant: ``decode(carrier(d)) == d`` for every device that a
fake can have. Called by: ``_dispatch``, ``_operators``, ``_tensor``, ``_patches``, ``_tracing``,
``_core/metadata``: wherever a device passes between the user and C++.

The carrier of ``cuda:3`` is ``meta:11``. With a CUDA device there, autograd would ask a CUDA
runtime that may not exist, which aborts the process on CPU builds of torch. The index of a wrapper
on ``meta`` survives in ``tensor.options()``: a factory that a C++ composite calls names ``meta:11``
too, and that can be decoded. A plain meta device has no index, so the two cannot be confused.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from torchfake._core import modes
from torchfake._torch import backends
from torchfake.errors import DeviceError

CPU = torch.device("cpu")
META = torch.device("meta")

_CPU_INDEX = 1
_FIRST_CUDA_INDEX = 8
MAX_CUDA_DEVICES = 128 - _FIRST_CUDA_INDEX  # a C++ device index is one signed byte


@cache
def carrier(device: torch.device) -> torch.device:
    """The C++ device of wrappers of fakes on `device`."""
    if device.type == "cpu":
        return torch.device("meta", _CPU_INDEX)
    if device.type == "cuda" and 0 <= (device.index or 0) < MAX_CUDA_DEVICES:
        return torch.device("meta", _FIRST_CUDA_INDEX + (device.index or 0))
    raise DeviceError(f"a fake tensor cannot be on {str(device)!r}: fakes are on cpu or cuda")


@cache
def decode(device: torch.device) -> torch.device:
    """The fake device of a carrier; any other device is returned as it is."""
    if device.type != "meta" or device.index is None:
        return device
    if device.index == _CPU_INDEX:
        return CPU
    if device.index >= _FIRST_CUDA_INDEX:
        return torch.device("cuda", device.index - _FIRST_CUDA_INDEX)
    return device


def resolve(device: Any) -> torch.device:
    """The full device for one as the user wrote it (str, int, torch.device), checked for this mode.

    ``cuda`` gets the index of the current device. Raises what torch raises if there is no such
    device: inside a mode without fake CUDA, on a machine without a GPU.
    """
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type == "meta":
        return decode(device)
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":
        return _resolve_cuda(device.index)
    raise DeviceError(f"a fake tensor cannot be on {str(device)!r}: fakes are on cpu or cuda")


def encode(device: Any) -> torch.device:
    """The carrier for a device that the user named; ``meta`` stays ``meta``."""
    target = resolve(device)
    return target if target.type == "meta" else carrier(target)


def _resolve_cuda(index: int | None) -> torch.device:
    state = modes.current()
    if state is not None and state.cuda is not None:
        num_devices, current = state.cuda.num_devices, state.cuda.current
    elif state is not None:
        if not torch.cuda.is_available():
            backends.raise_no_cuda()
        num_devices, current = torch.cuda.device_count(), 0
    else:  # a fake that outlived its mode may go to any device
        num_devices, current = MAX_CUDA_DEVICES, 0
    index = current if index is None else index
    if index >= num_devices:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: cuda:{index} was requested, and the mode has "
            f"{num_devices} CUDA device(s); fake_mode(fake_cuda=N) has N of them, at most "
            f"{MAX_CUDA_DEVICES}"
        )
    return torch.device("cuda", index)
