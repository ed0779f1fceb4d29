"""Wrapper subclasses on fake devices: C++ sees a carrier device, as for fakes.

Input: classes whose constructors call ``torch.Tensor._make_wrapper_subclass`` with the device of a
fake inside; functions that ask a DTensor for its device in C++. Output: wrappers on a carrier that
report the device that it encodes; functions that act as on that device. Invariant: on real devices
the wrappers and the functions are as in eager mode.

A wrapper whose device in C++ is ``cuda`` aborts the process as soon as autograd records an
operation on it without a CUDA runtime, and operations that look up the device's guard fail.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

from torchfake._core import devices, modes
from torchfake._patches.patch import Patch, replacing
from torchfake._tensor.attention import scaled_dot_product_attention
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._tensor.method_arguments import encode_target
from torchfake._tensor.torch_function import override_switch
from torchfake._torch import backends, subclass
from torchfake._torch.distributed.dtensors import is_dtensor, local_tensor_of

_builtin: Any = subclass.builtin_methods
_DEVICE_POSITION = 7  # of `device` among the arguments of _make_wrapper_subclass


def _make_wrapper_subclass(original: Any) -> Any:
    function = getattr(original, "__func__", original)

    @functools.wraps(function)
    def replacement(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if _has_fake_devices():
            _report_devices_of_carriers(cls)
            if len(args) >= _DEVICE_POSITION:
                position = _DEVICE_POSITION - 1
                args = (*args[:position], _carrier(args[position]), *args[position + 1 :])
            elif "device" in kwargs:
                kwargs = {**kwargs, "device": _carrier(kwargs["device"])}
        return function(cls, *args, **kwargs)

    return staticmethod(replacement)


def _carrier(device: Any) -> Any:
    if device is None or torch.device(device).type in ("cpu", "meta"):
        return device
    return devices.encode(device)


def _report_devices_of_carriers(cls: Any) -> None:
    """Make wrappers of `cls` report the devices that their carriers encode, even after the mode,
    which they outlive. Attributes that the class itself defines stay.
    """
    if cls.device is not _builtin.device:
        return
    for name, replacement in _REPORTED.items():
        if getattr(cls, name) is getattr(torch.Tensor, name):  # possibly replaced
            setattr(cls, name, replacement)
    cls.device = property(_device, doc=_builtin.device.__doc__)  # last: it marks `cls` as done


def _device(wrapper: Any) -> torch.device:
    return devices.decode(_cpp_device(wrapper))


def _cpp_device(wrapper: Any) -> torch.device:
    with subclass.no_subclass_functions():  # those of the class may call others
        return _builtin.device.__get__(wrapper)  # type: ignore[no-any-return]


def _is_on(device_type: str, builtin: Any) -> property:
    return property(lambda w: bool(w.device.type == device_type), doc=builtin.__doc__)


def _get_device(wrapper: Any) -> int:
    index = wrapper.device.index
    return -1 if index is None else int(index)


def _to(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_on_carrier(wrapper) or _names_accelerator(args, kwargs):
        args, kwargs = encode_target(args, kwargs)
    return _builtin.to(wrapper, *args, **kwargs)


def _cuda(wrapper: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
    if _is_on_carrier(wrapper) or _has_fake_devices():
        return wrapper.to("cuda" if device is None else device)
    return _builtin.cuda(wrapper, device, *args, **kwargs)


def _cpu(wrapper: Any, **kwargs: Any) -> Any:
    return (
        wrapper.to("cpu", **kwargs) if _is_on_carrier(wrapper) else _builtin.cpu(wrapper, **kwargs)
    )


def _is_on_carrier(wrapper: Any) -> bool:
    device = _cpp_device(wrapper)
    return bool(devices.decode(device) != device)


def _has_fake_devices() -> bool:
    state = modes.current()
    return state is not None and state.accelerator is not None


def _names_accelerator(args: Any, kwargs: Any) -> bool:
    target = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, torch.Tensor):
        target = target.device
    is_named = isinstance(target, (str, int, torch.device)) and not isinstance(target, bool)
    return is_named and _has_fake_devices() and devices.resolve(target).type not in ("cpu", "meta")


_REPORTED: dict[str, Any] = {
    "is_cuda": _is_on("cuda", _builtin.is_cuda),
    "is_meta": _is_on("meta", _builtin.is_meta),
    "get_device": _get_device,
    "to": _to,
    "cuda": _cuda,
    "cpu": _cpu,
}

PATCHES = [Patch(torch.Tensor, "_make_wrapper_subclass", _make_wrapper_subclass)]


# Functions that ask a tensor for its device in C++.


@replacing
def index_of_fakes(original: Any, input: Any) -> Any:
    """``torch.get_device``, for which a fake is on the device that carries it."""
    return input.get_device() if isinstance(input, FakeTensor) else original(input)


@replacing
def _group_by_device(original: Any, lists: Any, with_indices: bool = False) -> Any:
    """Group a foreach optimizer's tensors by device: DTensors by the device of their shards."""
    if not any(is_dtensor(tensor) for tensor in lists[0]):
        return original(lists, with_indices)
    local = [list(map(local_tensor_of, column)) for column in lists]
    groups = original(local, True)
    for key, (_, indices) in groups.items():
        columns = [[column[i] for i in indices] if column else [] for column in lists]
        groups[key] = columns, indices if with_indices else []
    return groups


def _switched_by_autocast(original: Any) -> Any:
    """C++ autocast asks a DTensor for its carrier too, so DTensors are cast where fakes are."""
    return override_switch


@replacing
def _attention(original: Any, /, query: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention: C++ would choose the kernel by the carrier of a DTensor. Context parallelism wraps
    the replaced function, and sends the keys and values of the chosen kernel.
    """
    if not is_dtensor(query):
        return original(query, *args, **kwargs)
    return scaled_dot_product_attention(original, query, *args, **kwargs)


def patches_of_dtensors() -> list[Patch]:
    """Patches by which optimizers, autocast and attention see DTensors of fakes on the devices of
    their shards. They wrap the patches of a mode.
    """
    from torch.distributed.tensor import DTensor

    return [
        Patch(DTensor, "__torch_function__", _switched_by_autocast),
        Patch(backends.bindings, "_group_tensors_by_device_and_dtype", _group_by_device),
        Patch(functional, "scaled_dot_product_attention", _attention),
    ]
