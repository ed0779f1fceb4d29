"""Functions whose C++ reads device arguments before anything is dispatched, replaced.

Input: the originals. Output: versions that resolve devices on the mode's fake machine.
Invariant: outside a mode, or on another thread, each is the original.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import torch

from torchfake._core import devices, modes
from torchfake._patches.patch import Patch, replacing
from torchfake._recording.arguments import fake_aliases
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._tensor.method_arguments import device_of_kind, target_of_type
from torchfake._torch import autograd, backends, dispatcher, kernels
from torchfake.errors import UnsupportedOpError


def _with_index(device: Any) -> Any:
    """Return the device, with an index, of an ordinal or of ``cuda``; other devices unchanged.

    For an ordinal C++ looks for the accelerator, and for ``cuda`` it queries CUDA's current device.
    """
    if device is None or not devices.names_any_device():
        return device
    if type(device) is not int:
        if not isinstance(device, (str, _device)):
            return device
        device = _device(device)
        if device.index is not None or device.type in ("cpu", "meta"):
            return device
    return devices.resolve(device)


_device = torch.device  # ``torch.device`` may be a stand-in


def _factory(original: Any) -> Any:
    """A function that takes ``device=``, such as ``torch.ones``."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _with_index(kwargs["device"])
            if isinstance(kwargs.get("out"), FakeTensor):
                _drop_device_of_out(kwargs)
        return original(*args, **kwargs)

    return replacement


def is_factory(function: Any) -> bool:
    """Whether `function` replaces a function that takes ``device=``. Called without a device, the
    replacement does what the original does.
    """
    return getattr(function, "__code__", None) is _CODE_OF_FACTORIES


_CODE_OF_FACTORIES = _factory(lambda: None).__code__


def _drop_device_of_out(kwargs: dict[str, Any]) -> None:
    """Drop the device that the ``out=`` tensor is on: C++ would compare it with the carrier."""
    device, own = kwargs["device"], kwargs["out"].device
    if device is not None and _device(device).type != own.type:
        raise RuntimeError(
            f"device type {_device(device).type} does not match device type of out parameter "
            f"({own.type})"
        )
    del kwargs["device"]


@replacing
def _to(original: Any, /, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.to`` of a real tensor: C++ would ask the driver for the index."""
    if args and isinstance(args[0], (str, int, _device)) and not isinstance(args[0], bool):
        args = (_with_index(args[0]), *args[1:])
    elif "device" in kwargs:
        kwargs["device"] = _with_index(kwargs["device"])
    return original(tensor, *args, **kwargs)


@replacing
def _to_device_type(
    original: Any,
    tensor: Any,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Any:
    """``Tensor.cuda``, ``xpu`` and ``mtia`` of a real tensor: C++ would start the driver."""
    options = {"non_blocking": non_blocking, "memory_format": memory_format}
    if not devices.names_any_device():
        return original(tensor, device, **options)
    return tensor.to(device_of_kind(device, original.__name__), **options)


@replacing
def _legacy_type(
    original: Any, /, tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """``Tensor.type`` of a real tensor, given a type such as ``torch.cuda.FloatTensor``."""
    if dtype is None or isinstance(dtype, torch.dtype) or not devices.names_any_device():
        return original(tensor, dtype, *args, **kwargs)
    return tensor.to(*target_of_type(dtype, tensor.device.type))


@replacing
def _default_type(original: Any, t: Any) -> None:
    """``torch.set_default_tensor_type``: C++ has no types of devices that it was not built for."""
    named = t if isinstance(t, str) else repr(t)
    device_type = _ACCELERATED_FLOATS.search(named)
    if device_type is None or not devices.names_any_device():
        return original(t)  # type: ignore[no-any-return]
    raise UnsupportedOpError(
        f"the default type cannot be {device_type[0]} in a mode: call "
        f"torch.set_default_device({device_type[1]!r}), and torch.set_default_dtype for the dtype"
    )


_ACCELERATED_FLOATS = re.compile(r"torch\.(\w+)\.(?:Float|Double|Half|BFloat16)Tensor")


@replacing
def _as_tensor(original: Any, data: Any, dtype: Any = None, device: Any = None) -> Any:
    """``torch.as_tensor`` of a fake: C++ would query CUDA for the index that ``cuda`` lacks."""
    if modes.current() is None or not isinstance(data, FakeTensor):
        return original(data, dtype=dtype, device=_with_index(device))
    if device is None:
        device = backends.context_device()
    return data.to(data.device if device is None else device, dtype or data.dtype)


@replacing
def _parse_to(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The parser of the arguments of ``nn.Module.to``: the first may be a device."""
    args = (*(_with_index(a) for a in args[:1]), *args[1:])
    if "device" in kwargs:
        kwargs["device"] = _with_index(kwargs["device"])
    return original(*args, **kwargs)


@replacing
def _group_by_device(original: Any, lists: Any, with_indices: bool = False) -> Any:
    """Group a foreach optimizer's tensors: C++ sees carriers and refuses step counts on the CPU."""
    if modes.current() is None or not any(isinstance(t, FakeTensor) for t in lists[0]):
        return original(lists, with_indices)
    groups: dict[Any, Any] = {}
    for i, tensor in enumerate(lists[0]):
        columns, indices = groups.setdefault(
            (tensor.device, tensor.dtype), ([[] for _ in lists], [])
        )
        for column, source in zip(columns, lists, strict=True):
            column.extend(source[i : i + 1])
        if with_indices:
            indices.append(i)
    return {key: groups[key] for key in _in_order_of_cpp(original, groups)}


def _in_order_of_cpp(original: Any, keys: Iterable[tuple[torch.device, torch.dtype]]) -> list[Any]:
    """Devices and dtypes in the order of torch's hash table, in which a norm adds up the groups;
    the dtypes of a GPU are ordered as those of the CPU.
    """
    by_device: dict[torch.device, list[torch.dtype]] = {}
    for device, dtype in keys:
        by_device.setdefault(device, []).append(dtype)
    found = []
    with dispatcher.as_eager():
        for device, dtypes in by_device.items():
            ordered = original([[torch.empty(0, dtype=dtype) for dtype in dtypes]], False)
            found += [(device, dtype) for _, dtype in ordered]
    return found


class _TypesWithFakes(list[type]):
    """Classes that foreach accepts: torch's list, and fakes unless operations are recorded. A
    module that is imported in a mode adds DTensor to torch's own list.
    """

    def __init__(self, original: list[type]) -> None:
        super().__init__(original)
        self._original = original

    def __contains__(self, cls: object) -> bool:
        if cls in self._original:
            return True
        return isinstance(cls, type) and issubclass(cls, FakeTensor) and not modes.is_recording()


@replacing
def _is_alias_of(original: Any, one: Any, other: Any) -> bool:
    """Whether two tensors share a storage: in C++, a fake has none."""
    if isinstance(one, FakeTensor) and isinstance(other, FakeTensor):
        return one._fake_storage is other._fake_storage
    return bool(original(one, other))


@replacing
def _wrap_for_grad(original: Any, tensor: Any, level: int) -> Any:
    """Wrap a tensor by which ``torch.func`` differentiates a function. Inside another transform,
    C++ compares the devices of that tensor and of its gradient, which is fake. So a fake of the
    same memory, read and written as in eager mode, stands for a real tensor.
    """
    if modes.current() is not None and autograd.is_transformed(tensor):
        inner = autograd.without_levels(tensor)
        if not isinstance(inner, FakeTensor) and not inner.is_meta:
            _refuse_functionalized(tensor)
            tensor = autograd.with_inner_tensor(tensor, fake_aliases)
    return original(tensor, level)


def _refuse_functionalized(tensor: torch.Tensor) -> None:
    """Refuse a functionalized tensor: its wrappers keep the real device, and are written back."""
    if autograd.is_functionalized(tensor):
        raise UnsupportedOpError(
            "inside a mode, torch.func.functionalize was given a real tensor by which a function "
            "inside it is differentiated. Pass a copy that is made in the mode: tensor.clone()"
        )


@replacing
def _is_acceptable(original: Any, tensor: Any) -> bool:
    """``cudnn.is_acceptable``: recurrent layers call it, and warn if torch has no cuDNN."""
    return False if isinstance(tensor, FakeTensor) else original(tensor)


_constructors = backends.device_constructors()
"""Computed at import, since torch caches the set at its first use: in a mode the set would contain
replacements, which torch would not recognise later, in the mode or after it.
"""

_names_of_constructors = [
    name
    for name, value in vars(torch).items()
    if callable(value) and value in _constructors and value is not torch.as_tensor
]


def _known_constructors(original: Any) -> Any:
    """The set that ``with torch.device(...)`` asks for again if torch's cache was cleared."""

    @functools.wraps(original)
    def replacement() -> set[Any]:
        return _constructors

    replacement.cache_clear = original.cache_clear  # type: ignore[attr-defined]
    replacement.cache_info = original.cache_info  # type: ignore[attr-defined]
    return replacement


@functools.cache
def patches_for_ordinals() -> list[Patch]:
    """Patches of all functions that take ``device=``, for modes in which C++ would take a number
    for another device than the mode's. Found at first use, since the search takes time.

    Other modes leave the functions alone: a function mode of the user gets the original, and may
    compare it with ``torch.ones``.
    """
    names = kernels.names_of_functions_with_device()
    patches = [
        Patch(owner, name, _factory) for owner, name in names if name not in ("as_tensor", "to")
    ]
    known = {(patch.owner, patch.name) for patch in patches}
    others = [name for name in _names_of_constructors if (torch, name) not in known]
    return patches + [Patch(torch, name, _factory) for name in others]


_CONVERSIONS = ("cuda", "xpu", "mtia")

PATCHES = [
    Patch(backends.bindings, "_is_alias_of", _is_alias_of),
    Patch(backends.bindings, "_group_tensors_by_device_and_dtype", _group_by_device),
    Patch(backends.function_transforms, "_wrap_for_grad", _wrap_for_grad),
    Patch(backends.device_contexts, "_device_constructors", _known_constructors),
]
PATCHES_FOR_NAMED_DEVICES = [
    Patch(torch, "as_tensor", _as_tensor),
    Patch(torch, "set_default_tensor_type", _default_type),
    Patch(torch.Tensor, "to", _to),
    Patch(torch.Tensor, "type", _legacy_type),
    *(Patch(torch.Tensor, name, _to_device_type) for name in _CONVERSIONS),
    Patch(backends.nn_functions, "_parse_to", _parse_to),
    Patch(backends.cudnn_functions, "is_acceptable", _is_acceptable),
    Patch(backends.optimizer_functions, backends.FOREACH_TYPES, _TypesWithFakes),
    Patch(backends.foreach_functions, backends.FOREACH_TYPES, _TypesWithFakes),
]
"""The patches for modes in which the program may name devices that this machine lacks."""
