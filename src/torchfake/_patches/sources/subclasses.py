"""Constructors of tensor subclasses, which C++ refuses for fakes: C++ ties a tensor to one class.

Input: the originals. Output: versions that give fakes of a class derived from the requested one
(``_tensor/classes``). Invariant: outside a mode, or on another thread, each is the original; of
real tensors, each makes what it makes in eager mode.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from torchfake._core import modes
from torchfake._patches.patch import Patch, replacing
from torchfake._tensor import known_values
from torchfake._tensor.classes import (
    as_class,
    make_subclass,
    refuse_integers,
)
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd, dispatcher, subclass

_Parameter = torch.nn.Parameter
_innermost_transform = autograd.innermost_transform


def _new_tensor(original: Any) -> Any:
    """``torch.Tensor.__new__``, which constructs the instances of subclasses too."""
    function = torch.Tensor.__new__

    @functools.wraps(function)
    def replacement(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if modes.current() is None:
            return function(cls, *args, **kwargs)
        if args and isinstance(args[0], (list, tuple)):  # C++ reads each item without a dispatch
            args = (known_values.with_real_items(args[0]), *args[1:])
        if cls is torch.Tensor:
            return function(cls, *args, **kwargs)
        made = function(torch.Tensor, *args, **kwargs)
        if isinstance(made, FakeTensor):
            return as_class(made, cls)
        return subclass.builtin_methods.as_subclass(made, getattr(cls, "_fake_of", cls))

    return staticmethod(replacement)


@replacing
def _as_subclass(original: Any, tensor: Any, cls: Any) -> Any:
    """``torch.Tensor.as_subclass``, called as a function: fakes have a method of their own."""
    if isinstance(tensor, FakeTensor):
        return tensor.as_subclass(cls)
    return original(tensor, getattr(cls, "_fake_of", cls))


def _make_subclass(original: Any) -> Any:
    """``Tensor._make_subclass``: C++ would copy a fake without its Python attributes.

    Lazy modules make their UninitializedParameter with this function.
    """
    function = torch.Tensor._make_subclass

    @functools.wraps(function)
    def replacement(cls: Any, data: Any, require_grad: bool = False, **kwargs: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return function(cls, data, require_grad, **kwargs)
        return make_subclass(cls, data, require_grad)

    return staticmethod(replacement)


def _new_parameter(original: Any) -> Any:
    """``nn.Parameter.__new__``. Of a fake, the original makes a parameter of the fake's class, so
    that a subclass of Parameter would be lost.
    """
    function = torch.nn.Parameter.__new__

    @functools.wraps(function)
    def replacement(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if _innermost_transform() is not None:
            return _new_parameter_in_transform(function, cls, args, kwargs)
        data = args[0] if args else kwargs.get("data")
        try:
            if isinstance(data, FakeTensor) and dispatcher.is_seen_by_modes():
                with dispatcher.hidden_from_modes():  # modes do not see eager's detach
                    made = function(cls, *args, **kwargs)
            else:
                made = function(cls, *args, **kwargs)
        except RuntimeError:
            refuse_integers(data)
            raise
        if cls is _Parameter or not isinstance(made, FakeTensor):
            return made
        return as_class(made, cls)

    return staticmethod(replacement)


def _new_parameter_in_transform(function: Any, cls: Any, args: Any, kwargs: Any) -> Any:
    """Make a parameter inside a transform of ``torch.func``, where ``detach`` of a fake gives a
    tensor of the transform, of another class, which torch refuses.
    """
    bound = inspect.signature(function).bind(cls, *args, **kwargs)
    bound.apply_defaults()
    _, data, requires_grad = bound.args
    if not isinstance(data, FakeTensor):
        return function(cls, data, requires_grad)
    return torch.Tensor._make_subclass(cls, data.detach(), requires_grad)


PATCHES = [
    Patch(torch.Tensor, "__new__", _new_tensor),
    Patch(torch.Tensor, "as_subclass", _as_subclass),
    Patch(torch.Tensor, "_make_subclass", _make_subclass),
    Patch(torch.nn.Parameter, "__new__", _new_parameter),
]
