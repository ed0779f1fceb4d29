"""The classes of fakes: how they construct and copy, as the classes do that they stand for.

Input: a class of real tensors; arguments of a constructor; a fake to copy. Output: the class of the
fakes that stand for its instances; a tensor of that class; a copy. Invariant: ``type(fake)(...)``
does what the same call does in eager mode: it gives a fake if it is given one or is called inside a
mode, and else a real tensor.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch.utils.hooks import warn_if_has_hooks

from torchfake._core import modes
from torchfake._tensor import known_values, torch_function
from torchfake._tensor.fake_tensor import (
    FakeTensor,
    is_deferred_fake,
    new_fake,
    user_attributes,
)
from torchfake._torch import autograd, subclass
from torchfake._torch.compiler import frames, higher_order

_Constructor = Callable[..., torch.Tensor]

_Mode = Callable[[], AbstractContextManager[Any]]

modes_by_kind: dict[bool, _Mode] = {}
"""Whether tensors are deferred, and the mode for such tensors: :mod:`torchfake.fake`, which is
above this file, puts both here.
"""


class FakeParameter(FakeTensor, torch.nn.Parameter):
    """The class of fake parameters. ``FakeParameter(data, requires_grad=...)`` is a parameter.

    ``nn.Parameter(fake)`` gives one, since torch marks a parameter of another class than
    ``torch.Tensor`` by ``_is_param = True``.
    """

    _fake_of = torch.nn.Parameter

    def __new__(cls, data: Any = None, requires_grad: bool = True, **kwargs: Any) -> Any:
        data = torch.empty(0) if data is None else data
        if cls is FakeParameter or kwargs:
            return torch.nn.Parameter(data, requires_grad, **kwargs)  # raises for what is unknown
        if type(data) not in FAKE_TYPES:  # a real tensor, or one of a class that torch refuses
            return torch.nn.Parameter.__new__(cls._fake_of, data, requires_grad)
        return make_subclass(cls, data.detach(), requires_grad)

    def detach(self) -> torch.Tensor:
        return _detach(self)

    # A new parameter: without gradient, hooks or attributes, and with memory of its own.
    __deepcopy__ = torch.nn.Parameter.__deepcopy__


_CONSTRUCTOR_OF_PARAMETERS = torch.nn.Parameter.__new__.__code__


def _detach(fake: FakeTensor) -> torch.Tensor:
    """``fake.detach()``; to ``nn.Parameter(fake)`` it has to give an instance of the same class."""
    detached: Any = subclass.builtin_methods.detach(fake)
    caller = sys._getframe(2 if type(fake) is FakeParameter else 1).f_code
    if caller is _CONSTRUCTOR_OF_PARAMETERS:
        detached.__class__ = type(fake)
    return detached  # type: ignore[no-any-return]


def make_subclass(cls: type, data: FakeTensor, requires_grad: bool = False) -> FakeTensor:
    """A fake on the storage of `data` that stands for a tensor of class `cls`."""
    if requires_grad:
        refuse_integers(data)
    storage, made_class = data._fake_storage, fake_class(cls)
    return new_fake(data._fake_meta, storage, made_class, requires_grad=requires_grad)


def as_class(fake: FakeTensor, cls: type) -> Any:
    """`fake`, which nobody else holds, as an instance of `cls`: as C++ makes a new tensor one."""
    fake.__class__ = fake_class(cls)
    return fake


def _as_subclass(fake: FakeTensor, cls: Any) -> Any:
    """``FakeTensor.as_subclass``: a view of the whole, in the autograd graph."""
    if not isinstance(cls, type) or not issubclass(cls, torch.Tensor):
        with known_values.without_fake_mode():
            return torch.empty(0).as_subclass(cls)  # raises what torch raises
    with subclass.no_subclass_functions():
        view: Any = torch.ops.aten.alias.default(fake)
    return as_class(view, cls)


def refuse_integers(data: Any) -> None:
    """Raise what torch's C++ raises for a parameter that cannot require a gradient."""
    dtype = data._fake_meta.dtype if isinstance(data, FakeTensor) else torch.float32
    if not dtype.is_floating_point and not dtype.is_complex:
        with known_values.without_fake_mode():
            subclass.make_subclass(torch.nn.Parameter, torch.empty(0, dtype=dtype), True)


def fake_class(cls: type) -> type[FakeTensor]:
    """The class of a fake that stands for a tensor of class `cls`.

    For a subclass of Tensor or Parameter that is not torch's own it is a class derived from both,
    so that ``isinstance``, its methods and its constructor hold.
    """
    if issubclass(cls, FakeTensor):
        return cls
    if cls is torch.Tensor:
        return FakeTensor
    return FakeParameter if cls is torch.nn.Parameter else _combined_class(cls)  # type: ignore[arg-type]


@cache
def _combined_class(cls: Any) -> type[FakeTensor]:
    has_functions = cls.__torch_function__ is not subclass.disabled_torch_function
    base = FakeParameter if issubclass(cls, torch.nn.Parameter) else FakeTensor
    namespace: dict[str, Any] = {
        "_fake_of": cls,
        "__new__": _new_combined,
        "__reduce_ex__": FakeTensor.__reduce_ex__,
    }
    if has_functions:
        namespace["__torch_function__"] = classmethod(torch_function.call_of_subclass)
    else:
        namespace["__torch_function__"] = torch_function.override_switch
    if cls.detach is torch.Tensor.detach and base is FakeTensor:
        namespace["detach"] = _detach
    if hasattr(cls, "cls_to_become"):  # UninitializedParameter: its class once it has a shape
        become = fake_class(cls.cls_to_become)
        namespace |= {"cls_to_become": become, "__deepcopy__": FakeTensor.__deepcopy__}
    kind: Any = type(cls)
    kind = kind if base is FakeParameter else _equal_kind(kind)
    combined: type[FakeTensor] = kind(cls.__name__, (cls, base), namespace)
    only: Any = combined if base is FakeParameter else _Only(combined)
    higher_order.share_kernels(FakeTensor, only)
    return combined


@cache
def _equal_kind(kind: type) -> Any:
    """The class of combined classes: each equals the user's, as a key of the user's tables
    (``{Image: torch.float32}[type(fake)]``); it is not the same.
    """
    namespace = {
        "__eq__": lambda cls, other: other is cls or other is vars(cls).get("_fake_of", cls),
        "__hash__": lambda cls: type.__hash__(vars(cls).get("_fake_of", cls)),
    }
    return type(kind.__name__, (kind,), namespace)


class _Only:
    """A key of torch's tables for a combined class, which the user's is not equal to."""

    def __init__(self, combined: type) -> None:
        self._combined = combined

    def __eq__(self, other: object) -> bool:
        return other is self._combined or (
            isinstance(other, _Only) and other._combined is self._combined
        )

    def __hash__(self) -> int:
        return hash(self._combined)


def _new_combined(combined: Any, *args: Any, **kwargs: Any) -> Any:
    """``__new__`` of a combined class: the user's, inside a mode if there are no real tensors."""
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    if tensors and not any(isinstance(t, FakeTensor) for t in tensors):
        return combined._fake_of(*args, **kwargs)
    new: _Constructor = super(combined, combined).__new__
    if modes.current() is not None:
        return new(combined, *args, **kwargs)
    with modes_by_kind[any(map(is_deferred_fake, tensors))]():
        return new(combined, *args, **kwargs)


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``FakeTensor.__new__``: the constructor of ``torch.Tensor``, as ``type(buffer)(data)``."""
    made = torch.Tensor(*args, **kwargs)
    return made if cls is FakeTensor or type(made) is not FakeTensor else make_subclass(cls, made)


def _inner_names(fake: FakeTensor) -> tuple[list[str], None]:
    """``FakeTensor.__tensor_flatten__``: tensordict counts the bytes of what a tensor names there.
    To torch it is not a wrapper of tensors, which has ``__tensor_unflatten__`` too.
    """
    return ["_same_bytes"] if fake.grad is None else ["_same_bytes", "grad"], None


_same_bytes: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


def _with_same_bytes(fake: FakeTensor) -> torch.Tensor:
    """A plain meta tensor as large as `fake`; the same one as long as somebody holds it."""
    meta = _same_bytes.get(id(fake))
    if meta is None:
        with known_values.without_fake_mode():
            meta = torch.empty(fake.shape, dtype=fake.dtype, device="meta")
        _same_bytes[id(fake)] = meta
    return meta


# What torch marks as a parameter.


def _is_parameter(fake: FakeTensor) -> bool:
    is_parameter = issubclass(type(fake), FakeParameter)
    return is_parameter or bool(subclass.all_attributes(fake).get("_is_param", False))


def _mark_parameter(fake: FakeTensor, is_parameter: bool) -> None:
    if type(fake) is FakeTensor and is_parameter:
        fake.__class__ = FakeParameter
    elif not issubclass(type(fake), FakeParameter):
        subclass.all_attributes(fake)["_is_param"] = is_parameter


# Copies.


def _deep_copy(fake: FakeTensor, memo: dict[int, Any]) -> FakeTensor:
    """``FakeTensor.__deepcopy__``. Fakes that share a storage do so in the copy."""
    if not fake.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment. If you were attempting to deepcopy a module, this may be "
            "because of a torch.nn.utils.weight_norm usage, see "
            "https://github.com/pytorch/pytorch/pull/103001"
        )
    if id(fake) in memo:
        return memo[id(fake)]  # type: ignore[no-any-return]
    storage = memo.get(id(fake._fake_storage))
    if storage is None:
        with known_values.without_fake_mode():
            storage = memo[id(fake._fake_storage)] = fake._fake_storage.copy()
    copied = new_fake(fake._fake_meta, storage, type(fake))
    with subclass.no_subclass_functions():
        if fake._fake_meta.conj or fake._fake_meta.neg:
            copied = copied.resolve_conj().resolve_neg()  # type: ignore[assignment]
        if not isinstance(fake, torch.nn.Parameter) and autograd.version_of(copied) is not None:
            autograd.count_writes(copied, 1)  # torch puts the copied storage into an empty tensor
        copied.requires_grad_(fake.requires_grad)
        if fake.grad is not None:
            copied.grad = copy.deepcopy(fake.grad, memo)
    memo[id(fake)] = copied
    attributes = subclass.all_attributes(copied)
    for name, value in user_attributes(fake).items():
        attributes[name] = copy.deepcopy(value, memo)
    return copied


def _shallow_copy(fake: FakeTensor) -> FakeTensor:
    """``FakeTensor.__copy__``: another tensor on the same storage, outside the autograd graph."""
    cls = type(fake)
    if not isinstance(fake, torch.nn.Parameter):
        warn_if_has_hooks(fake)
    elif cls._fake_of.__reduce_ex__ is torch.nn.Parameter.__reduce_ex__:  # type: ignore[attr-defined]
        cls = FakeParameter  # of a user's subclass too: torch rebuilds a plain parameter
    copied = new_fake(fake._fake_meta, fake._fake_storage, cls)
    with subclass.no_subclass_functions():
        copied.requires_grad_(fake.requires_grad)
    subclass.all_attributes(copied).update(user_attributes(fake))
    return copied


_flatten = frames.Untraceable(modes.thread, _inner_names)
FakeTensor.__tensor_flatten__ = _flatten  # type: ignore[attr-defined]
FakeTensor._same_bytes = property(_with_same_bytes)  # type: ignore[attr-defined]
FakeTensor.__new__ = staticmethod(_new)  # type: ignore[method-assign]
FakeTensor.as_subclass = _as_subclass  # type: ignore[method-assign, assignment]
FakeTensor.__copy__ = _shallow_copy  # type: ignore[attr-defined]
FakeTensor.__deepcopy__ = _deep_copy  # type: ignore[assignment, method-assign]
FakeTensor._is_param = property(_is_parameter, _mark_parameter)  # type: ignore[assignment]

FAKE_TYPES = frozenset((FakeTensor, FakeParameter))
"""What nearly all fakes are: to look a type up is faster than ``isinstance`` of a parameter."""
