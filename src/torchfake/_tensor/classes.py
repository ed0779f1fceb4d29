"""The classes of fakes, which construct and copy like the real classes that they stand for.

Input: a class of real tensors; arguments of a constructor; a fake to copy. Output: the class of the
fakes that stand for its instances; a tensor of that class; a copy. Invariant: ``type(fake)(...)``
does what the same call does in eager mode. The result is a fake if an argument is a fake or a mode
is on, else a real tensor.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from operator import is_not
from typing import Any

import torch
from torch.utils.hooks import warn_if_has_hooks

from torchfake._core import modes
from torchfake._core.storage import Storage
from torchfake._graph.deferred_storage import deferred_from_real
from torchfake._tensor import known_values, torch_function
from torchfake._tensor.fake_tensor import (
    FakeTensor,
    is_deferred_fake,
    new_fake,
    user_attributes,
)
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._torch import autograd, subclass
from torchfake._torch.compiler import frames, higher_order

_Constructor = Callable[..., torch.Tensor]

_Mode = Callable[[], AbstractContextManager[Any]]

modes_by_kind: dict[bool, _Mode] = {}
"""The mode to enter for plain fakes (key False) and for deferred fakes (key True). Filled by
:mod:`torchfake.fake`, which is above this file.
"""


class FakeParameter(FakeTensor, torch.nn.Parameter):
    """The class of fake parameters, which constructs as ``nn.Parameter`` does.

    ``nn.Parameter(fake)`` gives an instance: torch sets ``_is_param = True`` on a parameter of
    another class than ``torch.Tensor``, and on a fake that sets the class.
    """

    __module__ = torch.nn.Parameter.__module__
    _fake_of = torch.nn.Parameter

    def __new__(cls, data: Any = None, requires_grad: bool = True, **kwargs: Any) -> Any:
        data = torch.empty(0) if data is None else data
        if cls is FakeParameter or kwargs:
            return torch.nn.Parameter(data, requires_grad, **kwargs)  # raises if one is unknown
        if type(data) not in FAKE_TYPES:  # a real tensor, or one of a class that torch refuses
            return torch.nn.Parameter.__new__(cls._fake_of, data, requires_grad)
        return make_subclass(cls, data.detach(), requires_grad)

    def detach(self) -> torch.Tensor:
        return _detach(self)

    # A new parameter: without gradient, hooks or attributes, and with memory of its own.
    __deepcopy__ = torch.nn.Parameter.__deepcopy__


_CONSTRUCTOR_OF_PARAMETERS = torch.nn.Parameter.__new__.__code__


def _detach(fake: FakeTensor) -> torch.Tensor:
    """``fake.detach()``; inside ``nn.Parameter(fake)`` the result has to be of the fake's class."""
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
    """Make a new fake, which nothing else references, an instance of the class of `cls` fakes."""
    fake.__class__ = fake_class(cls)
    return fake


def _as_subclass(fake: FakeTensor, cls: Any) -> Any:
    """``FakeTensor.as_subclass``: a view of the whole tensor, in the autograd graph."""
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

    For a user's subclass of Tensor or Parameter, it derives from that subclass and FakeTensor, so
    that ``isinstance``, the subclass's methods and its constructor work.
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
        "__module__": cls.__module__,
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
        namespace |= {"cls_to_become": become, "shape": property(partial(_shape_of_lazy, cls))}
        copies = base is FakeParameter  # torch refuses to copy uninitialized buffers
        namespace["__deepcopy__"] = (FakeTensor if copies else torch.Tensor).__deepcopy__
    kind: Any = type(cls)
    kind = kind if base is FakeParameter else _equal_kind(kind)
    combined: type[FakeTensor] = kind(cls.__name__, (cls, base), namespace)
    only: Any = combined if base is FakeParameter else _Only(combined)
    higher_order.share_kernels(FakeTensor, only)
    return combined


def _shape_of_lazy(cls: Any, fake: FakeTensor) -> torch.Size:
    """``shape`` of an uninitialized fake of class `cls`: programs may not read it, operators are
    computed with it, as in C++.
    """
    is_of_program = not sys._getframe(1).f_globals.get("__name__", "").startswith("torchfake.")
    return cls.shape.__get__(fake) if is_of_program else torch.Size(fake._fake_meta.size)


@cache
def _equal_kind(kind: type) -> Any:
    """The metaclass of combined classes. A combined class equals the user's class, so that it finds
    entries in the user's tables: ``{Image: torch.float32}[type(fake)]``.
    """
    namespace = {
        "__eq__": lambda cls, other: other is cls or other is vars(cls).get("_fake_of", cls),
        "__hash__": lambda cls: type.__hash__(vars(cls).get("_fake_of", cls)),
    }
    return type(kind.__name__, (kind,), namespace)


class _Only:
    """A key for a combined class in torch's tables, which does not equal the user's class."""

    def __init__(self, combined: type) -> None:
        self._combined = combined

    def __eq__(self, other: object) -> bool:
        return other is self._combined or (
            isinstance(other, _Only) and other._combined is self._combined
        )

    def __hash__(self) -> int:
        return hash(self._combined)


def _new_combined(combined: Any, *args: Any, **kwargs: Any) -> Any:
    """``__new__`` of a combined class: calls the user's in a mode, unless given real tensors."""
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    if tensors and not any(isinstance(t, FakeTensor) for t in tensors):
        return combined._fake_of(*args, **kwargs)
    new: _Constructor = super(combined, combined).__new__
    if modes.current() is not None:
        return new(combined, *args, **kwargs)
    with modes_by_kind[any(map(is_deferred_fake, tensors))]():
        return new(combined, *args, **kwargs)


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``FakeTensor.__new__``: ``torch.Tensor(...)``, for calls such as ``type(buffer)(data)``."""
    made = torch.Tensor(*args, **kwargs)
    return made if cls is FakeTensor or type(made) is not FakeTensor else make_subclass(cls, made)


def _inner_names(fake: FakeTensor) -> tuple[list[str], None]:
    """``FakeTensor.__tensor_flatten__``: tensordict counts the bytes of the named attributes. Torch
    does not take fakes for wrappers, since fakes have no ``__tensor_unflatten__``.
    """
    return ["_same_bytes"] if fake.grad is None else ["_same_bytes", "grad"], None


_same_bytes: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


def _with_same_bytes(fake: FakeTensor) -> torch.Tensor:
    """A plain meta tensor as large as `fake`; the same object as long as it is referenced."""
    meta = _same_bytes.get(id(fake))
    if meta is None:
        with known_values.without_fake_mode():
            meta = torch.empty(fake.shape, dtype=fake.dtype, device="meta")
        _same_bytes[id(fake)] = meta
    return meta


# ``_is_param``, by which torch marks parameters.


def _is_parameter(fake: FakeTensor) -> bool:
    return bool(subclass.all_attributes(fake).get("_is_param", False))


def _mark_parameter(fake: FakeTensor, is_parameter: bool) -> None:
    if type(fake) is FakeTensor and is_parameter:
        fake.__class__ = FakeParameter
    elif not issubclass(type(fake), FakeParameter):
        subclass.all_attributes(fake)["_is_param"] = is_parameter


# Copies.


def copied_storage(storage: Storage, memo: dict[Any, Any]) -> Storage:
    """The copy of a storage in one deep copy. Memory that real tensors have too is copied once for
    all of them, in the table where torch keeps its copies of memory.
    """
    copied: Storage | None = memo.get(id(storage))
    if copied is not None:
        return copied
    deferred: Any = storage.deferred
    with known_values.without_fake_mode():
        if real_memory_of(storage) is None:
            copied = storage.copy()
        else:
            copies, key = memo.setdefault("torch", {}), subclass.storage_key(deferred.real)
            if modes.current() is not None and key not in copies:
                copies[key] = storage.copy().untyped  # in a mode, copies of real tensors are fakes
            copied = storage_on(copy.deepcopy(deferred.real, memo), storage.device, deferred.mark)
    memo[id(storage)] = copied
    return copied


def real_memory_of(storage: Storage) -> torch.UntypedStorage | None:
    """The memory of a deferred storage, which real tensors may have too; None if it has none."""
    deferred: Any = storage.deferred
    return None if deferred is None else deferred.real


def storage_on(memory: torch.UntypedStorage, device: torch.device, mark: int) -> Storage:
    """The storage of a fake storage object, or a deferred one on real memory."""
    if isinstance(memory, FakeUntypedStorage):
        return memory._fake_storage
    storage = Storage(memory.nbytes(), device)
    storage.deferred = deferred_from_real(memory, mark)
    return storage


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
    copied = new_fake(fake._fake_meta, copied_storage(fake._fake_storage, memo), type(fake))
    with subclass.no_subclass_functions():
        if fake._fake_meta.conj or fake._fake_meta.neg:
            copied = copied.resolve_conj().resolve_neg()  # type: ignore[assignment]
        elif not isinstance(fake, torch.nn.Parameter) and autograd.version_of(copied) is not None:
            autograd.count_writes(copied, 1)  # torch puts the copied storage into an empty tensor
        subclass.require_grad(copied, fake.requires_grad)
        if fake.grad is not None:
            copied.grad = copy.deepcopy(fake.grad, memo)
    memo[id(fake)] = copied
    attributes = subclass.all_attributes(copied)
    for name, value in user_attributes(fake).items():
        attributes[name] = copy.deepcopy(value, memo)
    return copied


def _copy_of_object(untyped: FakeUntypedStorage, memo: dict[Any, Any]) -> Any:
    """``FakeUntypedStorage.__deepcopy__``: the storage of the copies of its tensors."""
    return copied_storage(untyped._fake_storage, memo).untyped


def _shallow_copy(fake: FakeTensor) -> FakeTensor:
    """``FakeTensor.__copy__``: another tensor on the same storage, outside the autograd graph."""
    cls = type(fake)
    if not isinstance(fake, torch.nn.Parameter):
        warn_if_has_hooks(fake)
    elif cls._fake_of.__reduce_ex__ is torch.nn.Parameter.__reduce_ex__:  # type: ignore[attr-defined]
        cls = FakeParameter  # torch rebuilds a plain parameter for subclasses too
    copied = new_fake(fake._fake_meta, fake._fake_storage, cls)
    with subclass.no_subclass_functions():
        subclass.require_grad(copied, fake.requires_grad)
    subclass.all_attributes(copied).update(user_attributes(fake))
    return copied


_flatten = frames.Untraceable(modes.thread, _inner_names)
FakeTensor.__tensor_flatten__ = _flatten  # type: ignore[attr-defined]
FakeTensor._same_bytes = property(_with_same_bytes)  # type: ignore[attr-defined]
FakeTensor.__new__ = staticmethod(_new)  # type: ignore[method-assign]
FakeTensor.as_subclass = _as_subclass  # type: ignore[method-assign, assignment]
FakeTensor.__copy__ = _shallow_copy  # type: ignore[attr-defined]
FakeTensor.__deepcopy__ = _deep_copy  # type: ignore[assignment, method-assign]
FakeUntypedStorage.__deepcopy__ = _copy_of_object  # type: ignore[assignment, method-assign]
FakeTensor._is_param = property(_is_parameter, _mark_parameter)  # type: ignore[assignment]
# A module asks each parameter several times: always True, by a function in C.
FakeParameter._is_param = property(partial(is_not, None), _mark_parameter)  # type: ignore[assignment]

FAKE_TYPES = frozenset((FakeTensor, FakeParameter))
"""The types of nearly all fakes. A look-up here is faster than ``isinstance`` of a parameter."""
