"""Constructors of tensor subclasses, which C++ refuses for fakes: it ties a tensor to one class.

Input: the originals. Output: versions that give fakes of a class derived from the requested one
(``_tensor/classes``). Invariant: outside a mode, or on another thread, each is the original; what
is given real tensors gives what it gives in eager mode.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfake._core import modes
from torchfake._patches.patch import Patch
from torchfake._tensor.classes import (
    FAKE_TYPES,
    FakeParameter,
    as_class,
    fake_class,
    make_subclass,
    refuse_integers,
)
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd, subclass

_Parameter = torch.nn.Parameter
_torchs_new = _Parameter.__new__
_innermost_transform = autograd.innermost_transform
_detached_wrapper = subclass.detached_wrapper


def _new_tensor(original: Any) -> Any:
    """``torch.Tensor.__new__``, which constructs the instances of subclasses too."""
    function = torch.Tensor.__new__

    @functools.wraps(function)
    def replacement(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.Tensor or modes.current() is None:
            return function(cls, *args, **kwargs)
        made = function(torch.Tensor, *args, **kwargs)
        if isinstance(made, FakeTensor):
            return as_class(made, cls)
        return subclass.builtin_methods.as_subclass(made, getattr(cls, "_fake_of", cls))

    return staticmethod(replacement)


def _as_subclass(original: Any) -> Any:
    """``torch.Tensor.as_subclass``, called as a function: fakes have a method of their own."""

    @functools.wraps(original)
    def replacement(tensor: Any, cls: Any) -> Any:
        if isinstance(tensor, FakeTensor):
            return tensor.as_subclass(cls)
        return original(tensor, getattr(cls, "_fake_of", cls))

    return replacement


def _make_subclass(original: Any) -> Any:
    """``Tensor._make_subclass``: C++ would copy the wrapper without its fake attributes.

    Lazy modules make their UninitializedParameter by it.
    """
    function = torch.Tensor._make_subclass

    @functools.wraps(function)
    def replacement(cls: Any, data: Any, require_grad: bool = False, **kwargs: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return function(cls, data, require_grad, **kwargs)
        return make_subclass(cls, data, require_grad)

    return staticmethod(replacement)


def _new_parameter(original: Any) -> Any:
    """``nn.Parameter.__new__``: from a tensor of another class it makes a tensor of that class, and
    the subclass of Parameter would be lost. It calls ``requires_grad_()``, which it does not of a
    plain tensor. A fake of one is detached as that is: in C++, unseen by modes, unless somebody
    else has replaced the constructor.
    """
    function = torch.nn.Parameter.__new__
    is_torchs = function is _torchs_new

    @functools.wraps(function)
    def replacement(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in FAKE_TYPES:
            if is_torchs and _innermost_transform() is None and type(requires_grad) is bool:
                made_class = FakeParameter if cls is _Parameter else fake_class(cls)
                made: Any = _detached_wrapper(made_class, data, requires_grad)
                own = {"_fake_meta": data._fake_meta, "_fake_storage": data._fake_storage}
                made._fake_attributes = own
                return made
            if requires_grad:
                refuse_integers(data)
        is_plain = cls is torch.nn.Parameter and not autograd.are_transforms_running()
        if is_plain or not isinstance(data, FakeTensor):
            return function(cls, data, requires_grad)
        return torch.Tensor._make_subclass(cls, data.detach(), requires_grad)

    return staticmethod(replacement)


def makes_parameters_as_torch(constructor: Any) -> bool:
    """Whether ``nn.Parameter.__new__``, as it is in a mode, replaces torch's own."""
    function: Any = getattr(constructor, "__func__", None)
    is_ours = getattr(function, "__code__", None) is _CODE_OF_NEW_PARAMETER
    return is_ours and function.__wrapped__ is _torchs_new


_CODE_OF_NEW_PARAMETER = _new_parameter(None).__func__.__code__

PATCHES = [
    Patch(torch.Tensor, "__new__", _new_tensor),
    Patch(torch.Tensor, "as_subclass", _as_subclass),
    Patch(torch.Tensor, "_make_subclass", _make_subclass),
    Patch(torch.nn.Parameter, "__new__", _new_parameter),
]
