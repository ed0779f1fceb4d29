"""Storages without memory: size, device, source location, and known value. A fake has one.

Input: sizes in bytes, devices, known values. Output: :class:`Storage`; torch's storage object of
one, where a meta tensor needs it. Invariant: two fakes alias if and only if their ``Storage`` is
one object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from torchfake._core import living
from torchfake._core.source_location import RawLocation, SourceLocation
from torchfake._torch import subclass


class MetaStorage(torch.UntypedStorage):
    """torch's own storage object behind a :class:`Storage`, for the meta tensors that stand for
    fakes. Programs see a handle of it (``_tensor/storages``).
    """

    handle: weakref.ref[torch.UntypedStorage] | None = None
    sign: living.Sign


def new_meta_storage(num_bytes: int) -> MetaStorage:
    """A storage of this size without memory."""
    return MetaStorage(num_bytes, device="meta")  # type: ignore[no-untyped-call]


class SharedBytes:
    """Known bytes that several storages share: they are not written any more."""

    __slots__ = ("value",)

    is_draw = False  # of numbers that are drawn when they are read

    def __init__(self, value: torch.UntypedStorage | None) -> None:
        self.value = value

    def bytes(self) -> torch.UntypedStorage:
        assert self.value is not None
        return self.value

    @property
    def num_bytes(self) -> int:
        return self.bytes().nbytes()


class ConstantFill(NamedTuple):
    """A known value whose elements are all equal: zeros, ones. Its bytes are allocated when they
    are read, which is never for most biases.
    """

    number: Any
    dtype: torch.dtype
    num_bytes: int

    def bytes(self) -> torch.UntypedStorage:
        length = self.num_bytes // self.dtype.itemsize
        values = torch.empty(length, dtype=self.dtype, device="cpu")
        return values.fill_(self.number).untyped_storage()


class AssumedFill(ConstantFill):
    """A value assumed in place of an unknown one, such as that no number is infinite. The
    assumption answers the question asked; nothing else depends on it.
    """

    __slots__ = ()


class UpperBound(AssumedFill):
    """The largest number that each element of an unknown value can be: how many rows a mask that
    nobody knows selects at most. Who answers questions may want to know it.
    """

    __slots__ = ()


class MaybeNotFinite(UpperBound):
    """The mark of an unknown value computed from an infinite number or NaN: results computed from
    the value are not assumed to be finite.
    """

    __slots__ = ()


class LargeFill(MaybeNotFinite):
    """The one number in all elements of a tensor too large to keep its value. The number is not
    read; it tells whether results computed from the tensor are finite.
    """

    __slots__ = ()


KnownValue = torch.UntypedStorage | SharedBytes | ConstantFill
"""The known value of a storage: bytes of its own, shared bytes, or a constant."""


class PinnedMemory:
    """Memory that was requested as pinned, and that C code may fill: safetensors reads a file into
    it before the copy to a CUDA device. It is allocated when its address is read.
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
        """Record that the storage has another size now."""

    def copy(self) -> DeferredProtocol:
        """The state of a copy of the storage."""


_pinned: weakref.WeakKeyDictionary[Storage, PinnedMemory] = weakref.WeakKeyDictionary()
_by_key: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()


class StorageKind(NamedTuple):
    """The facts that all storages made by one kind of call share, in one record."""

    num_bytes: int  # when it was made: it may be resized
    device: torch.device
    op: Any  # the operator that made it


_kinds: dict[tuple[int, torch.device, int], StorageKind] = {}
_MAX_KINDS = 4096


def kind_of(num_bytes: int, device: torch.device, op: Any) -> StorageKind:
    """The kind of a storage, mostly the one that others have too."""
    key = num_bytes, device, id(op)  # which the kind keeps alive; its hash is a Python call
    known = _kinds.get(key)
    if known is None:
        if len(_kinds) >= _MAX_KINDS:
            _kinds.clear()
        known = _kinds[key] = StorageKind(num_bytes, device, op)
    return known


class Storage:
    """A storage without memory: its size and device, the operator that made it, its known value.

    As long as there is no storage object of torch, its slot holds the sign that a fake lives.
    """

    make_handle: ClassVar[Callable[[Storage], torch.UntypedStorage]]
    """Makes what programs get for ``untyped_storage()``: set by ``_tensor/storages``."""

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
    location: RawLocation | None  # in user code, where the operator was called
    value: KnownValue | None  # on the CPU, of small tensors; None if unknown
    deferred: DeferredProtocol | None  # if operations on the storage are recorded

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
        """The memory of a pinned storage. Few are: they have a table, and the others no slot."""
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
        """Say which operator made it, and where."""
        self._kind = kind_of(self._kind.num_bytes, self._kind.device, op)
        self.location = location

    @property
    def is_known(self) -> bool:
        """Whether the value is known, and not just assumed."""
        return self.value is not None and not isinstance(self.value, AssumedFill)

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of the value, or a bound alone."""
        return self.value is None or isinstance(self.value, UpperBound)

    def num_known_bytes(self) -> int:
        """The size of the known value. Bytes behind it, of a resize, were never written."""
        assert self.value is not None
        is_own = isinstance(self.value, torch.UntypedStorage)
        return self.value.nbytes() if is_own else self.value.num_bytes  # type: ignore[union-attr]

    def known_bytes(self) -> torch.UntypedStorage:
        """The bytes of the known value, to be read only."""
        assert self.value is not None
        if isinstance(self.value, AssumedFill):
            return self.value.bytes()  # and it stays assumed
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
        )  # of the bytes so far: see _unknown_values/finiteness
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
        """Torch's storage object, made on first request and kept as long as this."""
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
        """Change the size. The known value is discarded: bytes were freed or are uninitialised."""
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
        return load_storage, (self.num_bytes, str(self.device))


_new = object.__new__
_living = living.state


def storage_of_kind(
    kind: StorageKind, location: RawLocation | None, value: KnownValue | None = None
) -> Storage:
    """A new storage: all are made here, those of a kind that is known in half the time."""
    storage: Storage = _new(Storage)
    storage._kind = kind
    storage._meta = _living.find() or living.begin()
    storage.deferred = None
    storage.location = location
    storage.value = value
    return storage


def load_storage(num_bytes: int, device: str) -> Storage:
    """A storage from its pickle; the memo of pickle preserves aliasing."""
    return Storage(num_bytes, torch.device(device))


def storage_of(untyped: torch.UntypedStorage, device: torch.device) -> Storage:
    """The :class:`Storage` of a storage object of torch; a new one on `device` if it has none."""
    known = _by_key.get(subclass.storage_key(untyped))
    return Storage(untyped.nbytes(), device) if known is None else known
