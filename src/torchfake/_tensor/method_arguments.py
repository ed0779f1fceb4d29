"""The arguments of ``Tensor.to``, ``Tensor.type`` and the legacy ``Tensor.new``; indices.

Input: the arguments as the user passes them. Output: the arguments with devices encoded as
carriers, a dtype, a call of a modern constructor, or an index without lists. Invariant: nothing is
run but that conversion, constructor or indexing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchfake._core import devices, modes
from torchfake._core.devices import encode
from torchfake._core.metadata import DEFERRED_AS_META
from torchfake._torch import subclass


def encode_target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The arguments of ``Tensor.to``: devices as carriers, a tensor as its device and dtype."""
    if args and isinstance(args[0], torch.Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    if args and isinstance(args[0], (str, int, torch.device)) and not isinstance(args[0], bool):
        args = (encode(args[0]), *args[1:])
    other = kwargs.get("other")
    if other is not None:
        kwargs = {**kwargs, "device": other.device, "dtype": other.dtype}
        del kwargs["other"]
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": encode(kwargs["device"])}
    return args, kwargs


def is_non_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``Tensor.to`` with these arguments does not wait for a copy."""
    return bool(kwargs.get("non_blocking", next((a for a in args if type(a) is bool), False)))


def leaving_meta(kwargs: dict[str, Any], *given: Any) -> dict[str, Any]:
    """Of a fake that reports meta: the same, but outside of ``meta_init`` a device in it means a
    copy, which reports that device. C++ takes the fake to be there already.
    """
    state = modes.current()
    if state is not None and state.mark == DEFERRED_AS_META:
        return kwargs
    named = [d for d in (*given, kwargs.get("device")) if isinstance(d, torch.device)]
    is_moved = any(devices.decode(device) != devices.META for device in named)
    return {**kwargs, "copy": True} if is_moved else kwargs


def type_name(dtype: torch.dtype, device_type: str) -> str:
    """The result of ``tensor.type()``, such as ``"torch.cuda.FloatTensor"``."""
    return ("torch." if device_type == "cpu" else f"torch.{device_type}.") + TYPE_NAMES[dtype]


def scalar_type(dtype: torch.dtype) -> str:
    """The name that C++ has for a dtype in its errors, such as ``"Float"``."""
    return TYPE_NAMES.get(dtype, str(dtype)).removesuffix("Tensor")


TYPE_NAMES = {
    torch.float16: "HalfTensor", torch.bfloat16: "BFloat16Tensor", torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor", torch.complex64: "ComplexFloatTensor",
    torch.complex128: "ComplexDoubleTensor", torch.uint8: "ByteTensor", torch.int8: "CharTensor",
    torch.int16: "ShortTensor", torch.int32: "IntTensor", torch.int64: "LongTensor",
    torch.bool: "BoolTensor",
}  # fmt: skip
"""The names of the legacy constructors of tensors, such as ``torch.FloatTensor``, by dtype."""


def target_of_type(dtype: Any, device_type: str) -> tuple[Any, ...]:
    """The arguments of ``Tensor.to`` that do what ``Tensor.type(dtype)`` does for a tensor on a
    device of this type: the device stays, unless the new type is one of another kind of device.

    Raises:
        ValueError: if there is no such type.
    """
    if isinstance(dtype, torch.dtype):
        return (dtype,)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    parts = name.split(".")  # torch.FloatTensor, torch.cuda.FloatTensor
    target, named = parts[1] if len(parts) == 3 else "cpu", _dtype_of_type_name(name)
    return (named,) if target == device_type else (target, named)


def _dtype_of_type_name(name: str) -> torch.dtype:
    for dtype, type_name in TYPE_NAMES.items():
        if name.endswith("." + type_name):
            return dtype
    raise ValueError(f"invalid type: {name!r}")


def legacy_new(tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """``Tensor.new`` of sizes, data, a tensor or a storage (in workers of a DataLoader)."""
    first = args[0] if args else torch.Size([0])
    if isinstance(first, (torch.UntypedStorage, torch.TypedStorage)):
        return tensor.new_empty(0).set_(getattr(first, "_untyped_storage", first))
    _check_legacy_device(tensor, kwargs.get("device"))
    if isinstance(first, torch.Tensor):
        if (first.dtype, first.device.type) != (tensor.dtype, tensor.device.type):
            raise TypeError(
                f"expected a tensor of {tensor.dtype} on {tensor.device.type}, got one of "
                f"{first.dtype} on {first.device.type}"
            )
        return first.detach()
    if isinstance(first, (list, tuple)) and not isinstance(first, torch.Size):
        return tensor.new_tensor(first, **kwargs)
    return tensor.new_empty(first if isinstance(first, torch.Size) else args, **kwargs)


def _check_legacy_device(tensor: torch.Tensor, device: Any) -> None:
    """Refuse another kind of device than that of the tensor, as C++ does."""
    if device is not None and torch.device(device).type != tensor.device.type:
        raise RuntimeError(
            f"legacy constructor expects device type: {tensor.device.type} but device type: "
            f"{torch.device(device).type} was passed"
        )


def device_of_kind(device: Any, kind: str) -> torch.device:
    """The device that ``tensor.cuda(device)`` names, or ``tensor.mtia(device)`` and so on.

    Raises:
        RuntimeError: if it is one of another kind.
    """
    if device is None or type(device) is int:
        device = torch.device(kind, *(() if device is None else (device,)))
    if torch.device(device).type != kind:
        name = "MTIA" if kind == "mtia" else kind
        raise RuntimeError(f"Invalid device, must be {name} device")
    return devices.resolve(device)


def _is_on(device_type: str) -> property:
    def is_on(fake: Any) -> bool:
        return bool(fake._fake_meta.reported_device.type == device_type)

    return property(is_on)


def _conversion_to(device_type: str) -> Any:
    def convert(
        fake: Any,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        target = devices.carrier(device_of_kind(device, device_type))
        return subclass.builtin_methods.to(fake, target, memory_format=memory_format)

    convert.__name__ = convert.__qualname__ = device_type
    return convert


def of_device_types() -> dict[str, Any]:
    """The attributes ``is_cuda``, ``is_mps`` and so on of a fake, and methods like ``cuda()``."""
    builtin = subclass.builtin_methods
    types = ("cpu", *devices.KINDS)
    found = {f"is_{kind}": _is_on(kind) for kind in types if hasattr(builtin, f"is_{kind}")}
    return found | {kind: _conversion_to(kind) for kind in devices.KINDS if hasattr(builtin, kind)}


# Indices. C++ makes a list into a tensor on the wrapper's meta device, so its values are lost
# before anything is dispatched (in a mode since torch 2.15, outside of modes with any torch).

_get_item, _set_item = subclass.builtin_methods.__getitem__, subclass.builtin_methods.__setitem__
_WITHOUT_DATA = frozenset({int, slice, bool, torch.Tensor, type(None), type(...)})
_PARTS = (torch.Tensor, slice, type(None), type(...))
_INDEX_DTYPES = (torch.int64, torch.bool, torch.uint8)
_MAX_TUPLE = 32  # torch/csrc/autograd/python_variable_indexing.cpp: a list this long is a tensor


def get_item(tensor: torch.Tensor, index: Any) -> Any:
    """``tensor[index]``."""
    if type(index) not in _WITHOUT_DATA:
        with subclass.no_torch_functions():
            index = _with_tensors(index)
    return _get_item(tensor, index)


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """``tensor[index] = value``."""
    if type(index) not in _WITHOUT_DATA:
        with subclass.no_torch_functions():
            index = _with_tensors(index)
    _set_item(tensor, index, value)


def length(tensor: torch.Tensor) -> int:
    """``len(tensor)``, which C++ also calls for tensors in a list that it makes into a tensor."""
    if tensor.dim() == 0:
        raise TypeError(
            "len() of a 0-d tensor. If a tensor is made of a list, as by torch.FloatTensor(): it "
            "would read the values of fake tensors in it; use torch.tensor() or torch.stack()"
        )
    return tensor.shape[0]


def _with_tensors(index: Any) -> Any:
    """An index with tensors in place of sequences of numbers. A list that holds other sequences,
    slices or tensors stays a list, since C++ takes such a list for a tuple.
    """
    if isinstance(index, tuple):
        if all(type(item) in _WITHOUT_DATA for item in index):
            return index
        return tuple(map(_with_tensor, index))
    if _is_sequence(index) and 0 < len(index) < _MAX_TUPLE:
        if any(isinstance(item, _PARTS) or _is_sequence(item) for item in index):
            return list(map(_with_tensor, index))
    return _with_tensor(index)


def _with_tensor(item: Any) -> Any:
    """The tensor that C++ makes of a sequence in an index: of integers, booleans or bytes."""
    if not (_is_sequence(item) or isinstance(item, np.ndarray)):
        return item
    try:
        tensor = torch.tensor(item, device="cpu")
    except (TypeError, ValueError):
        return item  # C++ has a message for it
    if tensor.dtype not in _INDEX_DTYPES:
        tensor = torch.tensor(item, dtype=torch.int64, device="cpu")
    return tensor


def _is_sequence(value: Any) -> bool:
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    return is_array or (isinstance(value, Sequence) and not isinstance(value, str))
