"""The device that a fake reports, and its *carrier* device: the C++ device of the fake's wrapper.

Input: a device as users write it, or a carrier from C++. Output: the carrier for the user's device,
or the device that the carrier stands for. Invariant: ``decode(carrier(d)) == d`` for every device
that a fake can have.

The carrier of ``cuda:3`` is ``meta:11``. If the wrapper were on a CUDA device, autograd would call
the CUDA runtime, which aborts the process on CPU builds of torch. The index of a wrapper on
``meta`` survives in ``tensor.options()``: when a C++ composite calls a factory, the factory gets
``meta:11`` as its device, which can be decoded. A plain meta device has no index, so the two cannot
be confused.

The carriers of CUDA devices are fixed. Carriers of other accelerators are assigned when they are
first needed, since one signed byte cannot number all devices of all types.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, NamedTuple

import torch

from torchfake._core import modes
from torchfake._core.modes import DEFERRED_AS_META
from torchfake._torch import backends, dispatcher
from torchfake._torch.contexts import holding, shared
from torchfake.errors import DeviceError

CPU = torch.device("cpu")
META = torch.device("meta")

MAX_DEVICES = 120
"""The largest number of devices of a mode. A C++ device index is one signed byte, and carriers of
the CPU and other accelerators need indices too."""


class Accelerator(NamedTuple):
    """The known facts about one device type."""

    device_type: str
    name: str  # reported by get_device_name(); for CUDA, the profile's name is reported instead
    max_devices: int = MAX_DEVICES
    missing_dtypes: frozenset[torch.dtype] = frozenset()  # dtypes that tensors there cannot have
    has_profiles: bool = False  # gpu_profiles has its models, and its choice of kernels is known


_NOT_ON_MPS = frozenset({torch.float64, torch.complex128})

_KINDS = (
    Accelerator("cuda", "CUDA", has_profiles=True),
    Accelerator("mps", "Apple MPS", 1, _NOT_ON_MPS),
    Accelerator("xpu", "Intel XPU"),
    Accelerator("hpu", "Intel Gaudi HPU"),
    Accelerator("mtia", "MTIA"),
    Accelerator("xla", "XLA"),
)

KINDS = {kind.device_type: kind for kind in _KINDS}
"""The accelerators that torch names, by device type. A privateuse1 backend is one more."""


def kind_of(device_type: str) -> Accelerator:
    """The accelerator of a device type.

    Raises:
        DeviceError: if fakes cannot be on such devices.
    """
    kind = KINDS.get(device_type)
    if kind is None:
        if device_type != backends.name_of_privateuse1():
            raise DeviceError(
                f"a fake tensor cannot be on {device_type!r}: fakes are on cpu or cuda, or on "
                f"another accelerator: {', '.join(list(KINDS)[1:])}, or a backend that is named by "
                "torch.utils.rename_privateuse1_backend"
            )
        kind = _privateuse1(device_type)
    return kind


@cache
def _privateuse1(device_type: str) -> Accelerator:
    return Accelerator(device_type, device_type)


# Carriers.

_CPU_INDEX = 1
_FIRST_CUDA_INDEX = 8
_MAX_INDEX = 127  # a C++ device index is one signed byte

_devices_of_carriers: dict[torch.device, torch.device] = {torch.device("meta", _CPU_INDEX): CPU}
_giving_out = shared(threading.Lock())


@cache
def carrier(device: torch.device) -> torch.device:
    """The C++ device of wrappers of fakes on `device`."""
    if device.type == "cpu":
        return torch.device("meta", _CPU_INDEX)
    if device.type == "meta" or (device.index or 0) not in range(MAX_DEVICES):
        raise DeviceError(f"a fake tensor cannot be on {str(device)!r}: fakes are on cpu or cuda")
    kind_of(device.type)
    with holding(_giving_out):
        found = _free_carrier(torch.device(device.type, device.index or 0))
    return found


def _free_carrier(device: torch.device) -> torch.device:
    """The carrier of `device`, assigned if it has none. A CUDA device gets its fixed index if that
    is free. Other devices get the first free index, and indices of CUDA last, from the end.
    """
    for given, owner in _devices_of_carriers.items():
        if owner == device:
            return given
    others = (*range(2, _FIRST_CUDA_INDEX), *range(_MAX_INDEX, _FIRST_CUDA_INDEX - 1, -1))
    own = (_FIRST_CUDA_INDEX + (device.index or 0),) if device.type == "cuda" else ()
    for index in (*own, *others):
        chosen = torch.device("meta", index)
        if chosen not in _devices_of_carriers:
            if device.type in dispatcher.FORGOTTEN_AUTOCASTS:
                # asked only from here on, since asking for all types takes longer
                dispatcher.any_autocast = dispatcher.any_autocast_of_all_types
            _devices_of_carriers[chosen] = device
            return chosen
    raise DeviceError(
        f"a fake tensor cannot be on {device}: the fakes of this process are on "
        f"{len(_devices_of_carriers)} devices already, and there can be no more"
    )


def check_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a tensor that `device` cannot hold, in eager's words.

    Raises:
        TypeError: as eager does.
    """
    if device.type in ("cpu", "cuda", "meta"):
        return
    if dtype in kind_of(device.type).missing_dtypes:
        kind, name = device.type.upper(), str(dtype).removeprefix("torch.")
        raise TypeError(
            f"Cannot convert a {kind} Tensor to {name} dtype as the {kind} framework doesn't "
            f"support {name}. Please use float32 instead."
        )


def decode(device: torch.device) -> torch.device:
    """The fake device of a carrier; any other device is returned as it is."""
    return _devices_of_carriers.get(device, device)


def resolve(device: Any) -> torch.device:
    """The device that a user wrote (str, int, torch.device), with its index, checked for this mode.

    ``cuda`` gets the index of the current device, and a number names an accelerator. Raises torch's
    error if neither the mode nor the machine has the device.
    """
    if isinstance(device, int):
        device = torch.device(accelerator_type(), device)
    else:
        device = torch.device(device)
    if device.type == "meta":
        return decode(device)
    if device.type == "cpu":
        return CPU
    kind_of(device.type)
    return _resolve_accelerator(device)


def encode(device: Any) -> torch.device:
    """The carrier for a device that the user named; ``meta`` stays ``meta``."""
    target = resolve(device)
    return target if target.type == "meta" else carrier(target)


def accelerator_type() -> str:
    """The type of the device that a number names: the mode's accelerator, or torch's."""
    state = modes.current()
    if state is not None and state.accelerator is not None:
        return state.accelerator.device_type
    own = backends.own_accelerator_type()
    return "cuda" if own is None else own


def names_any_device() -> bool:
    """Whether devices may be named that the machine does not have: in a mode with an accelerator,
    or in ``meta_init``, which accepts any device.
    """
    state = modes.current()
    return state is not None and (state.accelerator is not None or state.mark == DEFERRED_AS_META)


def _resolve_accelerator(device: torch.device) -> torch.device:
    state, index = modes.current(), device.index
    machine = None if state is None else state.accelerator
    if machine is not None and machine.device_type == device.type:
        num_devices, current = machine.num_devices, machine.current
    elif state is None or state.mark == DEFERRED_AS_META:
        # a fake that outlived its mode may move to any device, and meta_init only records devices
        num_devices, current = MAX_DEVICES, 0
    else:
        num_devices, current = backends.num_real_devices(device), 0
    index = current if index is None else index
    if index >= num_devices:
        raise _invalid_ordinal(device.type, index, num_devices)
    return torch.device(device.type, index)


def _invalid_ordinal(device_type: str, index: int, num_devices: int) -> RuntimeError:
    kind = device_type.upper()
    option = f"fake_device={device_type!r}, num_devices=N"
    option = "fake_cuda=N" if device_type == "cuda" else option
    return RuntimeError(
        f"{kind} error: invalid device ordinal: {device_type}:{index} was requested, and the mode "
        f"has {num_devices} {kind} device(s); fake_mode({option}) provides N, at most "
        f"{kind_of(device_type).max_devices}"
    )
