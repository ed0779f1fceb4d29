"""What fakes do at the level of torch functions: almost nothing, as fast as can be.

Enters: a call of a torch function with a fake among its arguments. Leaves: the same call, with
autocast's casts made (C++ autocast asks the C++ device, which is meta) and devices of ``*_like``
factories told in carriers. Invariant: with autocast off, an operation costs no Python call here
but :meth:`Switch.__get__`.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from torchfake import _autocast, _private
from torchfake._device import encode

_LIKE_FACTORIES = frozenset(
    name for name in dir(torch) if name.endswith("_like") and not name.startswith("_")
)
_TAKES_DEVICE = frozenset(getattr(torch, name) for name in _LIKE_FACTORIES) | frozenset(
    getattr(torch.Tensor, name) for name in ("new_empty", "new_zeros", "new_ones", "new_full")
) | {torch.Tensor.new_empty_strided}
_FACTORY_NAMES = frozenset(function.__name__ for function in _TAKES_DEVICE)
_calls_factory: dict[types.CodeType, bool] = {}


class Switch:
    """The class attribute ``__torch_function__``: off, unless this call may need the override.

    torch looks the attribute up on each argument of each call, so the answer can differ from
    call to call: on while autocast is, and in code that names a factory which takes both a tensor
    and a device. Outside a mode C++ would start CUDA for ``torch.empty_like(fake,
    device="cuda")``, before any dispatch; ``nn.Module.to_empty`` does just that.
    """

    def __get__(self, fake: Any, owner: Any = None) -> Any:
        if _private.any_autocast():
            return override
        code = sys._getframe(1).f_code
        needed = _calls_factory.get(code)
        if needed is None:
            needed = _calls_factory[code] = _may_name_device(code)
        return override if needed else _private.disabled_torch_function


def override(func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    """``__torch_function__`` of a fake."""
    kwargs = kwargs or {}
    if kwargs.get("device") is not None and func in _TAKES_DEVICE:
        kwargs = {**kwargs, "device": encode(kwargs["device"])}
    if _private.any_autocast():
        return _autocast.call(func, args, kwargs)
    with _private.no_subclass_functions():
        return func(*args, **kwargs)


def _may_name_device(code: types.CodeType) -> bool:
    """Whether `code` names such a factory. torch's functions that dispatch overrides themselves
    would ask here in the name of their caller, and pass devices that are already full."""
    names = code.co_names
    return not _FACTORY_NAMES.isdisjoint(names) and "handle_torch_function" not in names
