"""What fakes do at the level of torch functions: almost nothing, as fast as can be.

Enters: a call of a torch function with a fake among its arguments. Leaves: the same call, but for
two things that C++ settles before any dispatch: whether autocast is on for the tensors' device,
and what a factory's ``device=`` means. Invariant: an operation that is neither costs no Python call
here but :meth:`Switch.__get__`.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from torchfake import _autocast, _private
from torchfake._device import encode
from torchfake._origin import AboutCode

_TAKES_DEVICE = frozenset(
    [getattr(torch, name) for name in dir(torch) if name.endswith("_like") and name[0] != "_"]
    + [
        getattr(torch.Tensor, "new_" + n)
        for n in ("empty", "empty_strided", "full", "ones", "zeros")
    ]
)
_NAMES = frozenset(f.__name__ for f in _TAKES_DEVICE)


def _may_need_override(code: types.CodeType) -> bool:
    """Whether `code` names such a factory, or is torch calling an override that was found."""
    return not _NAMES.isdisjoint(code.co_names) or code.co_filename == torch.overrides.__file__


_needs_override = AboutCode(_may_need_override)


class Switch:
    """The class attribute ``__torch_function__``: off, unless this call may need the override.

    torch looks the attribute up on each argument of each call, so the answer can differ from call
    to call: on while autocast is, and in code that names one of the factories above. Outside a
    mode C++ would start CUDA for ``torch.empty_like(fake, device="cuda")``, before any dispatch;
    ``nn.Module.to_empty`` does just that.
    """

    def __get__(self, fake: Any, owner: Any = None) -> Any:
        if _private.any_autocast():
            return override
        needed = _needs_override(sys._getframe(1).f_code)
        return override if needed else _private.disabled_torch_function


def override(func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    """``__torch_function__`` of a fake."""
    kwargs = kwargs or {}
    if kwargs.get("device") is not None and func in _TAKES_DEVICE:
        kwargs = {**kwargs, "device": encode(kwargs["device"])}
    if _private.any_autocast():
        return _autocast.call(func, args, kwargs)
    if isinstance(func, types.FunctionType):  # what it calls inside may name a device
        return _private.without_override_check(func)(*args, **kwargs)
    with _private.no_subclass_functions():
        return func(*args, **kwargs)
