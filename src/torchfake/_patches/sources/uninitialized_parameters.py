"""Parameters without a shape that were made outside of modes, by lazy modules.

Input: an uninitialized parameter or buffer, real, that is converted or gets its shape in a mode.
Output: the same object, which is an uninitialized fake. Invariant: nothing is lost, since such a
tensor has no values; outside a mode, or on another thread, each function is the original.

What a mode makes is fake, so the tensor that gives it its shape is one. C++ does not let a real
tensor become a fake.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchfake._core import modes
from torchfake._patches.patch import Patch, replacing
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import subclass

_Mixin: Any = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
_CONVERSIONS = {
    getattr(torch.Tensor, name)
    for name in ("to", "cpu", "cuda", "half", "float", "double", "char", "short", "int", "long")
}


def _converting(original: Any) -> Any:
    """``UninitializedTensorMixin.__torch_function__``."""
    function: Callable[..., Any] = _Mixin.__torch_function__

    @functools.wraps(original)
    def replacement(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = getattr(func, "__wrapped__", func)  # C++ finds methods by name, replaced ones too
        if func in _CONVERSIONS and args:
            _become_fake(args[0])
        return function.__func__(cls, func, types, args, kwargs)  # type: ignore[attr-defined]

    return classmethod(replacement)


@replacing
def _getting_a_shape(original: Any, /, lazy: Any, *args: Any, **kwargs: Any) -> None:
    """``UninitializedTensorMixin.materialize``."""
    _become_fake(lazy)
    original(lazy, *args, **kwargs)


def _become_fake(lazy: torch.Tensor) -> None:
    if modes.current() is None or isinstance(lazy, FakeTensor):
        return
    lazy_class: Any = type(lazy)
    made = lazy_class(requires_grad=lazy.requires_grad, device=lazy.device, dtype=lazy.dtype)
    subclass.all_attributes(made).update(subclass.all_attributes(lazy))
    subclass.swap_tensors(lazy, made)


PATCHES = [
    Patch(_Mixin, "__torch_function__", _converting),
    Patch(_Mixin, "materialize", _getting_a_shape),
]
