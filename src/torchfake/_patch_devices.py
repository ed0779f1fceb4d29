"""Functions whose C++ looks at devices before anything is dispatched.

Enters: the originals. Leaves: versions that know fake CUDA. Invariant: outside a mode, or on
another thread, each is the original.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfake import _device, _private, _state
from torchfake._patches import Patch
from torchfake._tensor import FakeTensor


def _has_fake_cuda() -> bool:
    state = _state.current()
    return state is not None and state.cuda is not None


def _named_in_full(device: Any) -> Any:
    """An ordinal, or ``cuda`` without one, as a device with an index; others as they are.

    C++ asks for the accelerator of an ordinal, and CUDA for its current device.
    """
    if type(device) is int or (device is not None and str(device) == "cuda"):
        return _device.resolve(device)
    return device


def _factory(original: Any) -> Any:
    """For functions that take ``device=``."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None and _has_fake_cuda():
            kwargs["device"] = _named_in_full(kwargs["device"])
        return original(*args, **kwargs)

    return replacement


def _as_tensor(original: Any) -> Any:
    """``torch.as_tensor`` of a fake: C++ would ask CUDA for the index that ``cuda`` lacks."""

    @functools.wraps(original)
    def replacement(data: Any, dtype: Any = None, device: Any = None) -> Any:
        if _state.current() is None or not isinstance(data, FakeTensor):
            named = _named_in_full(device) if _has_fake_cuda() else device
            return original(data, dtype=dtype, device=named)
        if device is None:
            device = _private.context_device()
        return data.to(data.device if device is None else device, dtype or data.dtype)

    return replacement


def _parse_to(original: Any) -> Any:
    """The arguments of ``nn.Module.to``: the first may be a device."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if _has_fake_cuda():
            args = (*(_named_in_full(a) for a in args[:1]), *args[1:])
            if kwargs.get("device") is not None:
                kwargs["device"] = _named_in_full(kwargs["device"])
        return original(*args, **kwargs)

    return replacement


def _group_by_device(original: Any) -> Any:
    """How foreach optimizers sort tensors: C++ sees carriers and refuses CPU step counts."""

    @functools.wraps(original)
    def replacement(lists: Any, with_indices: bool = False) -> Any:
        if _state.current() is None or not any(isinstance(t, FakeTensor) for t in lists[0]):
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


def _no_cudnn(original: Any) -> Any:
    """``cudnn.is_acceptable``: recurrent layers ask, and warn where cuDNN is not built in."""

    @functools.wraps(original)
    def replacement(tensor: Any) -> bool:
        return False if isinstance(tensor, FakeTensor) else original(tensor)

    return replacement


def _ordinals() -> list[Patch]:
    """The factories, where C++ cannot read an ordinal since it was built for no accelerator.

    Not elsewhere: a function mode of the user's is given the original, and may compare it with
    ``torch.ones``.
    """
    if torch.accelerator.current_accelerator() is not None:
        return []
    factories = _private.device_constructors() - {torch.as_tensor}
    return [
        Patch(torch, name, _factory)
        for name, value in vars(torch).items()
        if callable(value) and value in factories
    ]


PATCHES = [Patch(_private.bindings, "_group_tensors_by_device_and_dtype", _group_by_device)]
PATCHES_FOR_FAKE_CUDA = [
    *_ordinals(),
    Patch(torch, "as_tensor", _as_tensor),
    Patch(_private.nn_functions, "_parse_to", _parse_to),
    Patch(_private.cudnn_functions, "is_acceptable", _no_cudnn),
]
