"""The C++ functions of torch that compute metadata for every device, where there are some.

Input: an operator and a device type. Output: the function to run on meta tensors. Invariant: what
C++ says itself is not taken from Python.

Torch replaces these functions for meta tensors by others in Python, whose strides often are not
those of a real device: those of broadcasts, of empty tensors, in dims of length one. A structured
operator has one function for the metadata of its results, with which the kernels of all devices
begin. An operator that is composed below autograd is done by others on every device; those in turn
are looked up here. All else is torch's Python, with its strides corrected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from torchfake._operators import result_strides
from torchfake._operators.meta_kernels import outputs
from torchfake._operators.meta_kernels.first_use import own_kernel_for, replacement_for
from torchfake._torch import cpp_metadata, dispatcher

aten = torch.ops.aten
Kernel = Callable[..., Any]


@cache
def kernel_for(func: Any, device_type: str) -> Kernel:
    """What to run on meta tensors for a call of `func` on this device."""
    ours = own_kernel_for(func, device_type)
    if ours is not None:
        ours = partial(_replace, func, device_type, ours)
        return result_strides.with_strides_of_eager(func, ours, device_type)
    of_device = replacement_for(func, device_type)
    if device_type == "cpu" and cpp_metadata.begins_kernel_of_cpu(func):
        of_device = None  # torch's Python, whose messages are others
    if of_device is None and not result_strides.has_own_rule(func, device_type):
        kernel = _of_cpp(func, device_type)
        if kernel is not None:
            return kernel
    return result_strides.with_strides_of_eager(func, of_device or func, device_type)


def _of_cpp(func: Any, device_type: str) -> Kernel | None:
    """What C++ says of the metadata of a result; None if it says nothing."""
    functional = outputs.functional_of(func)
    if functional is not None and outputs.resizes_itself(func):
        return partial(outputs.resize_as_eager, func, _without_outputs(functional, device_type))
    if cpp_metadata.is_structured(func):
        return partial(_begin, func, device_type)
    if cpp_metadata.is_composed_below_autograd(func) and not _is_factory_or_view(func):
        return partial(_compose, func, device_type)
    if functional is None:
        return None
    if cpp_metadata.is_structured(functional):
        return partial(outputs.resize_and_adopt, func, kernel_for(functional, device_type))
    return _of_python(func, device_type)


def _without_outputs(functional: Any, device_type: str) -> Kernel:
    """What makes the results of an operator, if not by its overload with ``out=``."""
    if own_kernel_for(functional, device_type) or not cpp_metadata.is_composed_below_autograd(
        functional
    ):
        return kernel_for(functional, device_type)
    return result_strides.with_strides_of_eager(functional, functional, device_type)


def _of_python(func: Any, device_type: str) -> Kernel:
    """Torch's Python, with the strides of eager: with ``out=``, those of the result without it."""
    functional = outputs.functional_of(func) or func
    made = result_strides.with_strides_of_eager(functional, functional, device_type)
    return made if functional is func else partial(outputs.resize_and_adopt, func, made)


def _is_factory_or_view(func: Any) -> bool:
    arguments = func._schema.arguments
    is_view = any(a.alias_info is not None and not a.is_out for a in arguments)
    return is_view or any(a.name == "device" for a in arguments)


def _replace(func: Any, device_type: str, ours: Kernel, *args: Any, **kwargs: Any) -> Any:
    with dispatcher.with_parts_seen_by(_Parts(device_type, whole=func)):
        return ours(*args, **kwargs)


def _begin(func: Any, device_type: str, *args: Any, **kwargs: Any) -> Any:
    casts = result_strides.may_cast(func, device_type)
    if casts:
        args = result_strides.as_cast_on_cpu(args)
    with dispatcher.with_parts_seen_by(_Parts(device_type, func._schema.name)):
        made = cpp_metadata.begin_structured(func, args, kwargs)
        if casts and result_strides.casts_all(args, made):
            made = cpp_metadata.begin_structured(func, result_strides.copied(args), kwargs)
        return made


def _compose(func: Any, device_type: str, *args: Any, **kwargs: Any) -> Any:
    try:
        with dispatcher.with_parts_seen_by(_Parts(device_type)):
            return cpp_metadata.compose_below_autograd(func, args, kwargs)
    except NotImplementedError:  # a part has no meta kernel, but the whole may have one
        return _of_python(func, device_type)(*args, **kwargs)


def _has_number_as_tensor(func: Any, args: Any) -> bool:
    """Whether C++ has made a tensor of a number, which Python sees as a number again."""
    arguments = zip(func._schema.arguments, args, strict=False)
    return any(
        isinstance(value, (int, float, complex)) and str(argument.type) == "Tensor"
        for argument, value in arguments
    )


class _Parts(dispatcher.SlotMode):
    """Runs the operators of which another one is composed, on meta tensors. The kernel that
    computes the values of a structured one is not run: its results exist by then.
    """

    def __init__(self, device_type: str, structured: str | None = None, whole: Any = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_type = device_type
        self._structured = structured
        self._whole = whole  # which may ask for itself again: torch's, not ours

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name == self._structured:
            outputs = tuple(kwargs[a.name] for a in func._schema.arguments if a.is_out)
            if outputs:
                return outputs if len(outputs) > 1 else outputs[0]
        if func is self._whole:
            return func(*args, **kwargs)
        if _has_number_as_tensor(func, args):
            raise NotImplementedError
        return kernel_for(func, self._device_type)(*args, **kwargs)
