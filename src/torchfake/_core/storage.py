"""Storages without memory: size, device, source location, and known value. A fake has one storage.

Input: sizes in bytes, devices, known values. Output: :class:`Storage`, and torch's storage object
for a ``Storage`` whose fakes need meta tensors. Invariant: two fakes alias if and only if they have
the same ``Storage`` object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from torchfake._core import living, modes
from torchfake._core.source_location import RawLocation, SourceLocation
from torchfake._torch import subclass


class MetaStorage(torch.UntypedStorage):
    """torch's own storage object for a :class:`Storage`, on which meta tensors that stand for fakes
    are made. Programs see a handle of it (``_tensor/storages``).
    """

    handle: weakref.ref[torch.UntypedStorage] | None = None
    sign: living.Sign


def new_meta_storage(num_bytes: int) -> MetaStorage:
    """A storage of this size without memory."""
    return MetaStorage(num_bytes, device="meta")  # type: ignore[no-untyped-call]


class SharedBytes:
    """Known bytes that several storages share, and which are therefore never written."""

    __slots__ = ("value",)

    is_draw = False  # whether the bytes are random numbers, drawn when first read

    def __init__(self, value: torch.UntypedStorage | None) -> None:
        self.value = value

    def bytes(self) -> torch.UntypedStorage:
        assert self.value is not None
        return self.value

    @property
    def num_bytes(self) -> int:
        return self.bytes().nbytes()


class ConstantFill(NamedTuple):
    """A known value whose elements are all equal, such as zeros. The bytes are allocated when they
    are read; those of most biases never are.
    """

    number: Any
    dtype: torch.dtype
    num_bytes: int

    def bytes(self) -> torch.UntypedStorage:
        length = self.num_bytes // self.dtype.itemsize
        values = torch.empty(length, dtype=self.dtype, device="cpu")
        if type(self.number) is int and not self.number:
            return values.zero_().untyped_storage()  # no kernel fills uint4 or bits8
        return values.fill_(self.number).untyped_storage()


class AssumedFill(ConstantFill):
    """A value assumed in place of an unknown one, such as that no number is infinite. The
    assumption answers the question asked; nothing else depends on it.
    """

    __slots__ = ()


class UpperBound(AssumedFill):
    """An upper bound of each element of an unknown value, such as the number of rows that an
    unknown mask selects. It is shown to those who answer questions about unknown values.
    """

    __slots__ = ()


class MaybeNotFinite(UpperBound):
    """The mark of an unknown value computed from an infinite number or NaN: results computed from
    the value are not assumed to be finite.
    """

    __slots__ = ()


class LargeFill(MaybeNotFinite):
    """The one number in all elements of a tensor too large to keep its value. The number
    only decides whether results computed from the tensor are finite.
    """

    __slots__ = ()


NO_BYTES = ConstantFill(0, torch.uint8, 0)
"""The value of a tensor without elements, whatever is known of the storage that it views."""

KnownValue = torch.UntypedStorage | SharedBytes | ConstantFill
"""The known value of a storage: bytes of its own, shared bytes, or a constant."""


class PinnedMemory:
    """Pinned memory, allocated when its address is read. C code may fill it: safetensors reads a
    file into pinned memory, which it then copies to a CUDA device.
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes: torch.UntypedStorage | None = None

    def address(self, num_bytes: int) -> int:
        if self._bytes is None:
            self._bytes = torch.UntypedStorage(num_bytes, device="cpu")
        return self._bytes.data_ptr()


class DeferredProtocol(Protocol):
    """The interface of :class:`torchfake._graph.deferred_storage.DeferredState`."""

    mark: int

    def resize(self, num_bytes: int) -> None:
        """Record that the storage was resized."""

    def copy(self) -> DeferredProtocol:
        """The state of a copy of the storage."""


_pinned: weakref.WeakKeyDictionary[Storage, PinnedMemory] = weakref.WeakKeyDictionary()
_by_key: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()


class StorageKind(NamedTuple):
    """Size, device and operator: one record for all new storages for which they are equal."""

    num_bytes: int  # of the new storage, which may be resized later
    device: torch.device
    op: Any  # the operator that made the storage


_kinds: dict[tuple[int, torch.device, int], StorageKind] = {}
_MAX_KINDS = 4096


def kind_of(num_bytes: int, device: torch.device, op: Any) -> StorageKind:
    """The kind of storages with this size, device and operator, shared where possible."""
    key = num_bytes, device, id(op)  # an operator's hash is a Python call; the kind keeps it alive
    known = _kinds.get(key)
    if known is None:
        if len(_kinds) >= _MAX_KINDS:
            _kinds.clear()
        known = _kinds[key] = StorageKind(num_bytes, device, op)
    return known


class Storage:
    """A storage without memory: its size and device, the operator that made it, its known value.

    ``_meta`` is torch's storage object; until one is needed, the sign that a fake lives
    (``_core/living``) is in that slot.
    """

    make_handle: ClassVar[Callable[[Storage], torch.UntypedStorage]]
    """Makes the object that ``untyped_storage()`` returns: set by ``_tensor/storages``."""

    __slots__ = (
        "__weakref__",
        "_kind",
        "_meta",
        "deferred",
        "location",
        "value",
    )

    _kind: StorageKind
    _meta: MetaStorage | living.Sign
    location: RawLocation | None  # the line of user code that called the operator
    value: KnownValue | None  # what is known or assumed of the contents; None if nothing
    deferred: DeferredProtocol | None  # the record, if operations on the storage are recorded

    def __new__(
        cls,
        num_bytes: int,
        device: torch.device,
        op: Any = None,
        location: RawLocation | None = None,
        value: KnownValue | None = None,
    ) -> Storage:
        return storage_of_kind(kind_of(num_bytes, device, op), location, value)

    @property
    def pinned(self) -> PinnedMemory | None:
        """The memory of a pinned storage: in a table, since few storages need a slot for it."""
        return _pinned.get(self)

    @pinned.setter
    def pinned(self, memory: PinnedMemory) -> None:
        _pinned[self] = memory

    @property
    def num_bytes(self) -> int:
        meta = self._meta
        return meta.nbytes() if isinstance(meta, MetaStorage) else self._kind.num_bytes

    @property
    def device(self) -> torch.device:
        return self._kind.device

    @property
    def op(self) -> Any:
        """The operator that made the storage."""
        return self._kind.op

    def set_origin(self, op: Any, location: RawLocation | None) -> None:
        """Set the operator that made the storage, and the line of user code that called it."""
        self._kind = kind_of(self._kind.num_bytes, self._kind.device, op)
        self.location = location

    @property
    def is_known(self) -> bool:
        """Whether the value is known, and not just assumed."""
        return self.value is not None and not isinstance(self.value, AssumedFill)

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known about the value except, at most, a bound."""
        return self.value is None or isinstance(self.value, UpperBound)

    def num_known_bytes(self) -> int:
        """The size of the known value. Storage beyond it, from a resize, was never written."""
        assert self.value is not None
        is_own = isinstance(self.value, torch.UntypedStorage)
        return self.value.nbytes() if is_own else self.value.num_bytes  # type: ignore[union-attr]

    def known_bytes(self) -> torch.UntypedStorage:
        """The bytes of the known value, to be read only."""
        assert self.value is not None
        if isinstance(self.value, AssumedFill):
            return self.value.bytes()  # not kept: the value must stay an assumed one
        if isinstance(self.value, ConstantFill):
            self.value = self.value.bytes()
        return self.value if isinstance(self.value, torch.UntypedStorage) else self.value.bytes()

    def writable_bytes(self) -> torch.UntypedStorage:
        """The bytes of the known value, to be written: copied first if they are shared."""
        known = self.known_bytes()
        if known is not self.value:
            self.value = known = known.clone()
        known.__dict__.pop(
            "finiteness", None
        )  # cached for the old bytes: see _unknown_values/finiteness
        return known

    def share(self) -> SharedBytes | ConstantFill:
        """The known value as it is now. A later write to this storage copies the bytes first."""
        assert self.value is not None
        if isinstance(self.value, torch.UntypedStorage):
            self.value = SharedBytes(self.value)
        return self.value

    @property
    def source_location(self) -> SourceLocation | None:
        return None if self.location is None else SourceLocation(*self.location)

    @property
    def meta(self) -> MetaStorage:
        """Torch's storage object, made when first needed and kept as long as this storage."""
        if not isinstance(self._meta, MetaStorage):
            made = new_meta_storage(self._kind.num_bytes)
            made.sign = self._meta
            self._meta = made
            _by_key[subclass.storage_key(made)] = self
        return self._meta

    @property
    def untyped(self) -> Any:
        """The storage object that programs see. It keeps this storage alive, not the reverse."""
        meta = self.meta
        handle = None if meta.handle is None else meta.handle()
        if handle is None:
            handle = type(self).make_handle(self)
            meta.handle = weakref.ref(handle)
        return handle

    def resize(self, num_bytes: int) -> None:
        """Change the size. The known value is discarded: bytes were freed or are uninitialized."""
        self.meta.resize_(num_bytes)
        self.value = None
        if self.deferred is not None:
            self.deferred.resize(num_bytes)

    def copy(self) -> Storage:
        """A storage with the same size, device and value, which does not alias this one."""
        copied = Storage(self.num_bytes, self.device, self.op, self.location)
        copied.value = None if self.value is None else self.share()
        copied.deferred = None if self.deferred is None else self.deferred.copy()
        return copied

    def __reduce__(self) -> Any:
        pickled = self.num_bytes, str(self.device)
        if self.num_bytes > MAX_PICKLED_BYTES or not self.is_known:
            return load_storage, pickled
        return load_storage, (*pickled, bytes(self.known_bytes()).hex())


_new = object.__new__
_living = living.state


def storage_of_kind(
    kind: StorageKind, location: RawLocation | None, value: KnownValue | None = None
) -> Storage:
    """Make a storage of a known kind, which takes half the time of ``Storage(...)``."""
    storage: Storage = _new(Storage)
    storage._kind = kind
    storage._meta = _living.find() or living.begin()
    storage.deferred = None
    storage.location = location
    storage.value = value
    return storage


MAX_PICKLED_BYTES = 1 << 10
"""The size of the largest storage whose value is pickled, such as a count of steps."""


def load_storage(num_bytes: int, device: str, value: str | None = None) -> Storage:
    """A storage from its pickle; the memo of pickle preserves aliasing. Its bytes, as hexadecimal
    numbers: ``torch.load(weights_only=True)`` refuses an object of bytes.
    """
    known = None if value is None else torch.UntypedStorage(list(bytes.fromhex(value)))
    locate = modes.thread.locate
    located = torch.device(device) if locate is None else locate(num_bytes, device)
    return Storage(num_bytes, located, value=known)


def storage_of(untyped: torch.UntypedStorage, device: torch.device) -> Storage:
    """The :class:`Storage` of torch's storage object; a new one on `device` if there is none."""
    known = _by_key.get(subclass.storage_key(untyped))
    return Storage(untyped.nbytes(), device) if known is None else known
