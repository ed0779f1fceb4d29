"""``torch.empty``, ``zeros``, ``ones`` and ``tensor`` as layers call them: made without a dispatch
where nobody looks.

Input: the name ``torch`` in the modules of ``torch.nn`` that define layers. Output: the same, but
for some functions that, of a call like one that was made before, make the fake themselves: a
wrapper, a storage, the line of user code. Invariant: what can be seen of a fake is what the
original gives; where there is more to see (another mode, a transform, a profiler, a write to
record, somebody else's replacement) or more to read (a device, ``out=``), the original is called.

Models are made of layers, and to reach Python through C++ takes as long as all the rest of a call.
What it gives is the same each time; and two calls that differ in size alone tell what others give.
``torch.empty`` itself is not replaced: a function mode of the user compares what it is given with
``torch.empty``.
"""

from __future__ import annotations

import functools
import math
import types
from typing import Any, NamedTuple

import torch

from torchfake._cache import cache
from torchfake._core import devices, modes, source_location
from torchfake._core.metadata import (
    DEFERRED,
    PLAIN,
    Metadata,
    contiguous_stride,
    intern,
    with_mark,
)
from torchfake._core.storage import ConstantFill, Storage, StorageKind, storage_of_kind
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import Cell
from torchfake._patches import device_arguments
from torchfake._patches.patch import Patch
from torchfake._patches.sources import data_sources
from torchfake._patches.sources.callees import Callees, in_namespace
from torchfake._recording import fills
from torchfake._recording.initializers import find_call_site
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, wrapper_arguments
from torchfake._torch import autograd, backends, dispatcher, kernels, subclass

_thread = modes.thread
_is_unobserved = autograd.is_unobserved
_is_dispatched_to = dispatcher.is_dispatched_to
_is_deterministic = backends.is_deterministic
_default_dtype = torch.get_default_dtype
_caller_location = source_location.caller_location
_make_wrapper = subclass.make_wrapper
_new = object.__new__
_Size, _Dtype = torch.Size, torch.dtype
_names_of_torch = vars(torch)

_MAX_KNOWN = 8192
_MAX_BYTES = 1 << 62
_MAX_TRIES = 3  # of a call that gives something else each time


class Made(NamedTuple):
    """What a call gives, but for the storage and its line."""

    record: Metadata
    wrapper: tuple[Any, ...]  # the arguments of make_wrapper
    kind: StorageKind
    value: ConstantFill | None


class Family:
    """Calls of one function and dtype, which differ in size alone, and whether two gave the same
    but for that.
    """

    __slots__ = ("is_confirmed", "is_contradicted", "made")

    def __init__(self, made: Made) -> None:
        self.made = made
        self.is_confirmed = self.is_contradicted = False

    def add(self, made: Made) -> None:
        if made.record is not self.made.record:
            self.is_confirmed = True
            same = self.of_size(made.record.size)
            is_same = made == same and type(made.value) is type(same.value)
            self.is_contradicted = self.is_contradicted or not is_same

    def of_size(self, size: tuple[int, ...]) -> Made:
        """What a call gives that asks for this size."""
        seen = self.made
        record = intern(size, contiguous_stride(size), 0, seen.record.dtype, seen.record.device)
        kind = seen.kind._replace(num_bytes=record.num_bytes)
        value = None if seen.value is None else seen.value._replace(num_bytes=record.num_bytes)
        return Made(record, wrapper_arguments(record), kind, value)


def making(name: str, number: int | None, original: Any) -> Any:
    """A function that makes a tensor of a size, of which all elements are `number` or unknown."""
    is_empty = number is None
    allowed_mark = DEFERRED if is_empty else PLAIN  # what is written is recorded
    learned = _Learned(number)

    @functools.wraps(original)
    def replacement(*size: Any, dtype: Any = _ABSENT, device: Any = _ABSENT, **others: Any) -> Any:
        on = _thread.modes
        if (
            (others or (device is not None and device is not _ABSENT) or not size)
            or (not on or on[-1].mark > allowed_mark or on[-1].is_over)
            or (_names_of_torch[name] is not original and _is_replaced(name))
            or not (_is_unobserved() and _is_dispatched_to(on[-1].dispatch))
            or (is_empty and _is_deterministic())
        ):
            return _call(name, size, dtype, device, others)
        shape = size
        if len(size) == 1 and (type(size[0]) is tuple or type(size[0]) is _Size):
            shape = size[0]
        is_default = dtype is _ABSENT or dtype is None
        key = (shape, _default_dtype() if is_default else dtype, *map(type, shape))
        try:
            made = learned.calls.get(key) or learned.follow(key)
        except TypeError:  # a list, a symbolic size
            return _call(name, size, dtype, device, others)
        if made is None:
            fake = _call(name, size, dtype, device, others)
            learned.learn(key, fake)
            return fake
        record, wrapper, kind, value = made
        storage: Any = _new(Storage)
        storage._kind = kind
        storage.value = value
        storage._meta = storage.deferred = None
        if on[-1].mark:
            record = with_mark(record, DEFERRED)
            storage.location = find_call_site()[0]
            storage.deferred = DeferredState(Cell(kind.num_bytes, kind.device), None, DEFERRED)
        else:
            storage.location = _caller_location(2)
        fake = _make_wrapper(*wrapper)
        fake._fake_attributes = {"_fake_meta": record, "_fake_storage": storage}
        return fake

    return replacement


def making_numbers(original: Any) -> Any:
    """``torch.tensor`` of an integer as int64: batch norms count from zero."""
    known: dict[Any, Made] = {}
    cache.learned.append(known)

    @functools.wraps(original)
    def replacement(
        data: Any, *, dtype: Any = _ABSENT, device: Any = _ABSENT, **others: Any
    ) -> Any:
        on = _thread.modes
        if (
            (others or (device is not None and device is not _ABSENT) or type(data) is not int)
            or (not on or on[-1].mark or on[-1].is_over or dtype is not torch.int64)
            or (_names_of_torch["tensor"] is not original and _is_replaced("tensor"))
            or not (_is_unobserved() and _is_dispatched_to(on[-1].dispatch))
        ):
            return _call("tensor", (data,), dtype, device, others)
        made = known.get(data)
        if made is None:
            fake = _call("tensor", (data,), dtype, device, others)
            seen = _seen(fake, ((), dtype), data)
            if seen is not None:
                if len(known) >= _MAX_KNOWN:
                    known.clear()
                known[data] = seen
            return fake
        storage = storage_of_kind(made.kind, _caller_location(2), made.value)
        fake = _make_wrapper(*made.wrapper)
        fake._fake_attributes = {"_fake_meta": made.record, "_fake_storage": storage}
        return fake

    return replacement


_ABSENT: Any = object()
"""In the place of an argument that is not given, which a function mode of the user could see."""


def _call(name: str, size: Any, dtype: Any, device: Any, others: dict[str, Any]) -> Any:
    """Call the function of this name as the program has, whatever it is now."""
    if dtype is not _ABSENT:
        others["dtype"] = dtype
    if device is not _ABSENT:
        others["device"] = device
    return _names_of_torch[name](*size, **others)


def _is_replaced(name: str) -> bool:
    """Whether somebody has replaced a function, who may do anything in it."""
    function = _names_of_torch[name]
    while device_arguments.is_factory(function) or data_sources.is_of_a_mode(function):
        function = function.__wrapped__  # of a mode
    return function is not _originals[name]


class _Learned:
    """What calls of one function give, whose elements are all `number` or unknown.

    A key has the size, the dtype, and the types of the lengths: equal lengths may be of types that
    torch refuses.
    """

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.calls: dict[Any, Made] = {}
        self.families: dict[Any, Family] = {}
        self.tries: dict[Any, int] = {}
        cache.learned += (self.calls, self.families, self.tries)

    def follow(self, key: Any) -> Made | None:
        """What a call gives, if that follows from calls that differ in size alone."""
        family = self.families.get(_family_key(key))
        if family is None or not family.is_confirmed or family.is_contradicted:
            return None
        made = family.of_size(tuple(key[0]))
        self._remember(key, made)
        return made

    def learn(self, key: Any, fake: Any) -> None:
        """Note what a call gave."""
        num_tries, family_key = self.tries.get(key, 0), _family_key(key)
        made = _seen(fake, key, self.number) if num_tries < _MAX_TRIES else None
        if made is not None:
            self._remember(key, made)
            if family_key is not None:
                self.families.setdefault(family_key, Family(made)).add(made)
        elif family_key is not None:  # else its lengths may be objects of the program
            if len(self.tries) >= _MAX_KNOWN:
                self.tries.clear()
            self.tries[key] = num_tries + 1

    def _remember(self, key: Any, made: Made) -> None:
        if len(self.calls) >= _MAX_KNOWN:
            self.calls.clear()
        self.calls[key] = made


def _seen(fake: Any, key: Any, number: int | None) -> Made | None:
    """What another call of this key gives, if that can be told from what this one gave, which has
    all elements equal to `number`.
    """
    shape, dtype, *types = key
    is_plain = type(dtype) is _Dtype and all(t is int for t in types) and type(fake) is FakeTensor
    if not is_plain or not cache.settings.enabled or cache.settings.checking:
        return None
    record, storage, deferred = fake._fake_meta, fake._fake_storage, fake._fake_storage.deferred
    expected = intern(tuple(shape), contiguous_stride(tuple(shape)), 0, dtype, devices.CPU)
    if deferred is not None:
        is_empty = fills.is_plain(deferred) and deferred.op is None
        if not is_empty or record is not with_mark(expected, DEFERRED):
            return None
        record = expected
    if record is not expected or storage.num_bytes != record.num_bytes:
        return None
    value = storage.value
    if number is not None and isinstance(value, torch.UntypedStorage):
        value = ConstantFill(number, dtype, record.num_bytes)
    if storage.pinned is not None or not (value is None or isinstance(value, ConstantFill)):
        return None
    return Made(record, wrapper_arguments(record), storage._kind, value)


def _family_key(key: Any) -> Any:
    """What calls have in common that differ in size alone; None for sizes that are special."""
    shape, dtype, *types = key
    if type(dtype) is not _Dtype or not all(t is int for t in types) or not types:
        return None
    num_bytes = math.prod(shape) * dtype.itemsize
    if min(shape) <= 0 or num_bytes > _MAX_BYTES:
        return None
    return dtype, known_values.keeps_value(num_bytes, dtype)


def called_in(module: Any, names: tuple[str, ...]) -> list[Callees] | None:
    """What a module of layers calls by these names; None if somebody has replaced one."""
    if not isinstance(module.torch, _Torch):
        return None
    replacements = vars(module.torch)
    for name in names:
        own: Any = replacements.get(name)
        if getattr(own, "__code__", None) not in _CODES:
            return None
        if _names_of_torch[name] is not own.__wrapped__ and _is_replaced(name):
            return None
    return [*in_namespace(names, replacements), *in_namespace(names, _names_of_torch)]


class _Torch(types.ModuleType):
    """``torch``, with some functions replaced."""

    def __init__(self, replacements: dict[str, Any]) -> None:
        super().__init__("torch", torch.__doc__)
        vars(self).update(replacements)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def __dir__(self) -> list[str]:
        return dir(torch)


_NUMBERS = {"empty": None, "zeros": 0, "ones": 1}
_originals = {
    name: function
    for name in (*_NUMBERS, "tensor")
    if isinstance(function := getattr(torch, name), types.BuiltinFunctionType)
}
"""Those that nobody had replaced when this was imported."""


@functools.cache
def _with_replacements(original: Any) -> Any:
    """One for all modules of layers: what is learned of one is known to all."""
    if original is not torch:
        return original
    made = {
        name: making_numbers(function)
        if name == "tensor"
        else making(name, _NUMBERS[name], function)
        for name, function in _originals.items()
    }
    for name, replacement in made.items():
        kernels.name_in_scripts(replacement, _originals[name])
    return _Torch(made)


NAMES = (*_NUMBERS, "tensor")
_CODES = {making("empty", None, torch.empty).__code__, making_numbers(torch.tensor).__code__}

_nn = torch.nn.modules
_MODULES = (
    _nn.activation, _nn.batchnorm, _nn.conv, _nn.linear, _nn.normalization, _nn.rnn, _nn.sparse
)  # fmt: skip

PATCHES = [Patch(module, "torch", _with_replacements) for module in _MODULES]
