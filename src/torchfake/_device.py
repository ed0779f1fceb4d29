"""A fake's device, and the C++ device its wrapper carries.

Enters: a device as users write it, or as C++ hands it back. Leaves: the other. Invariant:
``decode(carrier(d)) == d`` for every device a fake can have.

The wrapper of a ``cuda:3`` fake is ``meta:11`` to C++: a CUDA device there would make autograd
ask a CUDA runtime that may not exist, which aborts the process on CPU builds of torch. The index
of a wrapper on ``meta`` survives in ``tensor.options()``, so a factory that a C++ composite calls
names ``meta:11`` too and can be decoded. A plain meta device has no index: the two never meet.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from torchfake import _private, _state
from torchfake.errors import DeviceError

CPU = torch.device("cpu")
META = torch.device("meta")

_CPU_INDEX = 1
_FIRST_CUDA_INDEX = 8
MAX_CUDA_DEVICES = 128 - _FIRST_CUDA_INDEX  # a C++ device index is one signed byte


@cache
def carrier(device: torch.device) -> torch.device:
    """The C++ device that stands for fake device `device`."""
    if device.type == "cpu":
        return torch.device("meta", _CPU_INDEX)
    if device.type == "cuda" and 0 <= (device.index or 0) < MAX_CUDA_DEVICES:
        return torch.device("meta", _FIRST_CUDA_INDEX + (device.index or 0))
    raise DeviceError(f"a fake tensor cannot be on {str(device)!r}: fakes live on cpu and cuda")


@cache
def decode(device: torch.device) -> torch.device:
    """The fake device that a carrier stands for; any other device as it is."""
    if device.type != "meta" or device.index is None:
        return device
    if device.index == _CPU_INDEX:
        return CPU
    if device.index >= _FIRST_CUDA_INDEX:
        return torch.device("cuda", device.index - _FIRST_CUDA_INDEX)
    return device


def resolve(device: Any) -> torch.device:
    """A device as the user wrote it (str, int, torch.device) as a full one, checked for this mode.

    ``cuda`` gains the current device's index. Raises what torch raises when there is no such
    device: inside a mode without fake CUDA, on a machine without a GPU.
    """
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type == "meta":
        return decode(device)
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":
        return _resolve_cuda(device.index)
    raise DeviceError(f"a fake tensor cannot be on {str(device)!r}: fakes live on cpu and cuda")


def encode(device: Any) -> torch.device:
    """What to tell C++ for a device the user named; ``meta`` stays ``meta``."""
    target = resolve(device)
    return target if target.type == "meta" else carrier(target)


def _resolve_cuda(index: int | None) -> torch.device:
    state = _state.current()
    if state is not None and state.cuda is not None:
        num_devices, current = state.cuda.num_devices, state.cuda.current
    elif state is not None:
        if not torch.cuda.is_available():
            _private.raise_no_cuda()
        num_devices, current = torch.cuda.device_count(), 0
    else:  # a fake that outlived its mode may go to any device
        num_devices, current = MAX_CUDA_DEVICES, 0
    index = current if index is None else index
    if index >= num_devices:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: cuda:{index} was asked for, and the mode has "
            f"{num_devices} CUDA device(s); fake_mode(fake_cuda=N) has N, of at most "
            f"{MAX_CUDA_DEVICES}"
        )
    return torch.device("cuda", index)
