"""Functions whose C++ reads device arguments before anything is dispatched, replaced.

Input: the originals. Output: versions that resolve devices as the mode's fake machine has them.
Invariant: outside a mode, or on another thread, each is the original. Called by:
``_patches/install``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfake._core import devices, modes
from torchfake._patches.patch import Patch
from torchfake._recording.arguments import fake_aliases
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd, backends
from torchfake.errors import UnsupportedOpError


def _has_fake_cuda() -> bool:
    state = modes.current()
    return state is not None and state.cuda is not None


def _with_index(device: Any) -> Any:
    """An ordinal, or ``cuda`` without one, as a device with an index; other devices unchanged.

    For an ordinal C++ looks for the accelerator, and for ``cuda`` it queries CUDA's current device.
    """
    if type(device) is int or (device is not None and str(device) == "cuda"):
        return devices.resolve(device)
    return device


def _factory(original: Any) -> Any:
    """Functions that take ``device=``."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None and _has_fake_cuda():
            kwargs["device"] = _with_index(kwargs["device"])
        return original(*args, **kwargs)

    return replacement


def _as_tensor(original: Any) -> Any:
    """``torch.as_tensor`` of a fake: C++ would query CUDA for the index that ``cuda`` lacks."""

    @functools.wraps(original)
    def replacement(data: Any, dtype: Any = None, device: Any = None) -> Any:
        if modes.current() is None or not isinstance(data, FakeTensor):
            device_with_index = _with_index(device) if _has_fake_cuda() else device
            return original(data, dtype=dtype, device=device_with_index)
        if device is None:
            device = backends.context_device()
        return data.to(data.device if device is None else device, dtype or data.dtype)

    return replacement


def _parse_to(original: Any) -> Any:
    """The parser of the arguments of ``nn.Module.to``: the first may be a device."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if _has_fake_cuda():
            args = (*(_with_index(a) for a in args[:1]), *args[1:])
            if kwargs.get("device") is not None:
                kwargs["device"] = _with_index(kwargs["device"])
        return original(*args, **kwargs)

    return replacement


def _group_by_device(original: Any) -> Any:
    """How foreach optimizers group tensors: C++ sees carriers and refuses CPU step counts."""

    @functools.wraps(original)
    def replacement(lists: Any, with_indices: bool = False) -> Any:
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
        return groups

    return replacement


def _wrap_for_grad(original: Any) -> Any:
    """What ``torch.func`` does to a tensor that a function is differentiated by. Inside another
    transform, C++ compares the devices of that tensor and of its gradient, which is fake. So a real
    one is represented by a fake of the same memory, which is read and written as in eager mode.
    """

    @functools.wraps(original)
    def replacement(tensor: Any, level: int) -> Any:
        if modes.current() is not None and autograd.is_transformed(tensor):
            inner = autograd.without_levels(tensor)
            if not isinstance(inner, FakeTensor) and not inner.is_meta:
                _refuse_functionalized(tensor)
                tensor = autograd.with_inner_tensor(tensor, fake_aliases)
        return original(tensor, level)

    return replacement


def _refuse_functionalized(tensor: torch.Tensor) -> None:
    """Its wrappers keep the device of the real tensor, and are written back to it at the end."""
    if autograd.is_functionalized(tensor):
        raise UnsupportedOpError(
            "inside a mode, torch.func.functionalize was given a real tensor by which a function "
            "inside it is differentiated. Pass a copy that is made in the mode: tensor.clone()"
        )


def _is_acceptable(original: Any) -> Any:
    """``cudnn.is_acceptable``: recurrent layers call it, and warn if torch has no cuDNN."""

    @functools.wraps(original)
    def replacement(tensor: Any) -> bool:
        return False if isinstance(tensor, FakeTensor) else original(tensor)

    return replacement


def _factory_patches() -> list[Patch]:
    """Patches of the factories, if torch was built for no accelerator: C++ cannot read an ordinal.

    Only then, since a function mode of the user gets the original, and may compare it with
    ``torch.ones``.
    """
    if torch.accelerator.current_accelerator() is not None:
        return []
    factories = backends.device_constructors() - {torch.as_tensor}
    return [
        Patch(torch, name, _factory)
        for name, value in vars(torch).items()
        if callable(value) and value in factories
    ]


PATCHES = [
    Patch(backends.bindings, "_group_tensors_by_device_and_dtype", _group_by_device),
    Patch(backends.function_transforms, "_wrap_for_grad", _wrap_for_grad),
]
PATCHES_FOR_FAKE_CUDA = [
    *_factory_patches(),
    Patch(torch, "as_tensor", _as_tensor),
    Patch(backends.nn_functions, "_parse_to", _parse_to),
    Patch(backends.cudnn_functions, "is_acceptable", _is_acceptable),
]
