"""Constructors of torch's layers: done at once where nobody looks.

Input: the originals. Output: versions that, of a call like an earlier one, make the module, its
fakes and what its reset does to these in one go. Invariant: what can be seen of a layer is what the
original makes; where there is more to see or to do (what ``_patches/sources/factories`` and ``resets``
name; another class, an argument that is an object of the program, something that the constructor
calls and that somebody has replaced), the original is called.

A model has hundreds of layers and a few kinds of them. The original of a linear layer calls ten
functions of Python, and makes each parameter twice: as a tensor, and as a parameter of that.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import OrderedDict
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn

from torchfake._cache import cache
from torchfake._core import modes, source_location
from torchfake._core.metadata import DEFERRED
from torchfake._core.source_location import RawLocation
from torchfake._core.storage import Storage
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import Cell
from torchfake._patches.patch import Patch, is_torchs
from torchfake._patches.sources import effects, factories, resets, subclasses
from torchfake._patches.sources.callees import (
    Callees,
    are_as_before,
    are_in,
    globals_of,
    in_namespace,
    of_class,
    sizes_of,
)
from torchfake._patches.sources.reset_effects import Recorded, Reset
from torchfake._patches.sources.resets import Known
from torchfake._recording import fills
from torchfake._recording.initializers import find_call_site
from torchfake._tensor.classes import FakeParameter
from torchfake._tensor.fake_tensor import FakeTensor, user_attributes, wrapper_arguments
from torchfake._torch import autograd, backends, dispatcher, subclass

_thread = modes.thread
_is_unobserved = autograd.is_unobserved
_is_dispatched_to = dispatcher.is_dispatched_to
_is_deterministic = backends.is_deterministic
_default_dtype = torch.get_default_dtype
_caller_location = source_location.caller_location
_make_wrapper = subclass.make_wrapper
_new = object.__new__

_MAX_KNOWN = 4096
_MAX_TRIES = 3
_PLAIN_TYPES = frozenset({int, bool, float, str, type(None), torch.dtype})
"""Of arguments and attributes that layers may have in common."""

_CONTAINERS = frozenset({dict, OrderedDict, set})
_OF_TENSORS = ("_parameters", "_buffers")
_OF_EACH = vars(nn.Module())
"""The attributes that each module has, as they are in a new one."""


class _Part(NamedTuple):
    """A parameter or buffer of a layer, but for its storage; or that it has none of this name."""

    name: str
    record: Any = None  # its metadata
    wrapper: tuple[Any, ...] | None = None  # the arguments of make_wrapper
    kind: Any = None  # of its storage


class _Layer(NamedTuple):
    """What layers are like that calls with equal arguments make."""

    attributes: dict[str, Any]  # all of them, in their order
    containers: tuple[tuple[str, Any], ...]  # makes those of which each layer has its own
    buffers: tuple[_Part, ...]
    parameters: tuple[_Part, ...]
    effect: Any  # of its reset: a Reset if it is plain, else Recorded
    callees: tuple[Callees, ...]  # of the constructor


def _constructing(owner: type, original: Any) -> Any:
    """The constructor that `owner` defines, for the layers that inherit it."""
    if not is_torchs(original, owner, "__init__"):
        return original  # somebody has replaced it
    classes = resets.LAYERS[owner].classes
    known: dict[Any, _Layer | int] = {}
    cache.learned.append(known)

    @functools.wraps(original)
    def replacement(self: Any, *args: Any, **kwargs: Any) -> None:
        on = _thread.modes
        if (
            (not on or on[-1].mark > DEFERRED or on[-1].is_over or type(self) not in classes)
            or not (_is_unobserved() and _is_dispatched_to(on[-1].dispatch))
            or (_is_deterministic() or _thread.passes_over_together)
            or (vars(self) or type(vars(self)) is not dict)
        ):
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        mark = on[-1].mark
        try:
            key = _key(type(self), mark, args, kwargs)
            found = known.get(key, 0)
        except Exception:  # a list, a symbolic size: what has no hash
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        if isinstance(found, int):  # how often nothing was learned
            original(self, *args, **kwargs)
            if found < _MAX_TRIES and all(map(_is_plain, (*args, *kwargs.values()))):
                if len(known) >= _MAX_KNOWN:
                    known.clear()
                known[key] = _seen(self, mark) or found + 1
            return None
        site = find_call_site() if mark else None
        if not _is_as_before(found) or (site is not None and site[1] is not None):
            known.pop(key, None)
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        own = vars(self)
        own["training"] = True  # Python copies a dict into an empty one with all its spare room
        own |= found.attributes
        for name, container in found.containers:
            own[name] = container()
        location = _caller_location(2) if site is None else site[0]
        made = _make(found, own, mark, location)
        if site is None:
            found.effect.repeat_on_new(made)
        elif made:
            fills.record_of_new(found.effect.fills, made, site)
        return None

    signed: Any = replacement
    signed.__signature__ = inspect.signature(original)  # for those who do not unwrap it
    return replacement


def _key(cls: type, mark: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What calls have in common that make the same: equal arguments of the same types."""
    types = [*map(type, args), *map(type, kwargs.values())]
    key = (cls, mark, _default_dtype(), args, *kwargs.items(), *types)
    if tuple not in types and torch.Size not in types:
        return key
    tuples = [value for value in (*args, *kwargs.values()) if isinstance(value, tuple)]
    return (*key, *[type(element) for value in tuples for element in value])


def _make(layer: _Layer, own: dict[str, Any], mark: int, location: RawLocation | None) -> list[Any]:
    """Make the tensors of a layer, as they are before its reset: in the order of that."""
    made = []
    for tensors, parts in (
        (own["_buffers"], layer.buffers),
        (own["_parameters"], layer.parameters),
    ):
        for name, record, wrapper, kind in parts:
            if wrapper is None:
                tensors[name] = None
                continue
            storage: Any = _new(Storage)
            storage._kind = kind
            storage.value = storage._meta = storage.deferred = None
            storage.location = location
            if mark:
                storage.deferred = DeferredState(Cell(kind.num_bytes, kind.device), None, mark)
            fake = tensors[name] = _make_wrapper(*wrapper)
            fake._fake_attributes = {"_fake_meta": record, "_fake_storage": storage}
            made.append(fake)
    return made


# What is to be seen of a layer that the original has made.


def _seen(module: Any, mark: int) -> _Layer | None:
    """What is the same of each layer like this one; None if something may be another each time."""
    if not cache.settings.enabled or cache.settings.checking:
        return None
    known = resets.known_of(module)
    names = (*vars(module), *module._parameters, *module._buffers)
    callees = None if known is None else _callees(type(module), known, names)
    attributes = None if callees is None else _attributes_of(module)
    if known is None or callees is None or attributes is None:
        return None
    every = (*module._buffers.values(), *module._parameters.values())
    tensors = [tensor for tensor in every if tensor is not None]
    if not all(_is_usual(t, mark) for t in tensors) or not _is_done_by(known.effect, tensors):
        return None
    parts = [
        tuple(_Part(name) if t is None else _part(name, t) for name, t in each.items())
        for each in (module._buffers, module._parameters)
    ]
    layer = _Layer(*attributes, parts[0], parts[1], known.effect, callees)
    return layer if _is_as_before(layer) else None  # not while a hook is registered


def _is_plain(value: Any) -> bool:
    """Whether it is nothing but its value. Zeros have a sign, which no comparison tells."""
    if type(value) in (tuple, torch.Size):
        return all(type(element) is int for element in value)
    return type(value) in _PLAIN_TYPES and not (type(value) is float and value == 0)


def _attributes_of(module: Any) -> tuple[dict[str, Any], tuple[tuple[str, Any], ...]] | None:
    """The attributes of layers like this one, and what makes those that each has for itself: the
    empty containers of a new module, copies of lists. None if there is something else.
    """
    own = dict(vars(module))
    containers: list[tuple[str, Any]] = []
    for name, value in _OF_EACH.items():
        found = own.get(name)
        if type(found) is not type(value) or (found != value and name not in _OF_TENSORS):
            return None
        if type(value) in _CONTAINERS and not value:
            own[name] = None
            containers.append((name, type(value)))
    for name, value in own.items():
        elements = value if type(value) is list else [value]
        if not all(map(_is_plain, elements)):
            return None
        if type(value) is list:
            containers.append((name, value.copy().copy))
    return own, tuple(containers)


def _is_usual(fake: Any, mark: int) -> bool:
    """Whether a tensor is nothing but what can be made again, as large as its storage."""
    if type(fake) not in (FakeTensor, FakeParameter) or user_attributes(fake) or not fake.is_leaf:
        return False
    record, storage = fake._fake_meta, fake._fake_storage
    is_all = effects.is_whole(record) and storage.num_bytes == record.num_bytes
    return record.mark == mark and is_all and storage.pinned is None


def _part(name: str, fake: Any) -> _Part:
    record = fake._fake_meta
    wrapper = type(fake), *wrapper_arguments(record)[1:]
    if fake.requires_grad:
        wrapper = (wrapper[0], *subclass.with_requires_grad(wrapper[1:]))
    return _Part(name, record, wrapper, fake._fake_storage._kind)


def _is_done_by(effect: Reset | Recorded, tensors: list[Any]) -> bool:
    """Whether a reset with this effect, and nothing else, has written these tensors."""
    draws = () if isinstance(effect, Recorded) else effect.draws
    found = []
    for tensor in tensors:
        value = effects.value_beside(draws, tensor._fake_storage.value)
        found.append((tensor._version, effects.as_fill(value, tensor._fake_meta.dtype)))
    if isinstance(effect, Recorded):
        return found == [(fill.num_writes, None) for fill in effect.fills]
    return found == [(write.num_writes, write.value) for write in effect.writes]


_METHODS = ("__setattr__", "register_parameter", "register_buffer")  # and those that resets watch
_HOOKS = ("_global_parameter_registration_hooks", "_global_buffer_registration_hooks")
_MODULE = sys.modules[nn.Module.__module__]
_home = vars(_MODULE)
_hooks = itemgetter(*_HOOKS)
_GLOBALS = globals_of(*(vars(nn.Module)[name] for name in ("__init__", *_METHODS)))
"""What the functions of each module read."""


def _callees(cls: type, known: Known, names: Iterable[str]) -> tuple[Callees, ...] | None:
    """What the constructor of a layer calls; None if something of it is not torch's, or torch's as
    a mode has replaced it. `names`: of all attributes, parameters and buffers that it sets.
    """
    owner = resets.owner_of(cls)
    made_by = factories.called_in(sys.modules[owner.__module__], _factories_of(owner))
    is_torchs_own = (
        resets.is_replacement(getattr(cls, "reset_parameters", None))
        and subclasses.makes_parameters_as_torch(vars(nn.Parameter)["__new__"])
        and is_torchs(nn.Module.__init__, nn.Module, "__init__")
        and all(is_torchs(getattr(cls, name), nn.Module, name) for name in _METHODS)
        and not any(hasattr(cls, name) for name in names)
        and not {"__init__", "__call__"} & {*vars(nn.Parameter), *vars(type(nn.Parameter))}
        and are_in(_home, _GLOBALS)
    )
    if made_by is None or not is_torchs_own:
        return None
    classes = *cls.__mro__[:-1], nn.Parameter, type(nn.Parameter)
    return (
        *known.callees,
        *made_by,
        *of_class((*_METHODS, "reset_parameters"), cls),
        *in_namespace(("__init__", "call_super_init"), vars(nn.Module)),
        *in_namespace(("__new__",), vars(nn.Parameter)),
        *in_namespace(_GLOBALS, _home),
        *sizes_of((*classes, _MODULE)),
    )


def _factories_of(owner: Any) -> tuple[str, ...]:
    """The functions of torch by which a constructor makes tensors."""
    names = inspect.unwrap(owner.__init__).__code__.co_names
    return tuple(name for name in factories.NAMES if name in names)


def _is_as_before(layer: _Layer) -> bool:
    """Whether the constructor would call what it called, and nobody is told."""
    return are_as_before(layer.callees) and not any(_hooks(_home))


PATCHES = [
    Patch(owner, "__init__", functools.partial(_constructing, owner)) for owner in resets.LAYERS
]
