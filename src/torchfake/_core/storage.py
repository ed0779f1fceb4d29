"""Storages without memory: size, device, source location, and known value. A fake has one.

Input: sizes in bytes, devices, known values. Output: :class:`Storage`; torch's view of one, where a
program asks for ``untyped_storage()``. Invariant: two fakes alias if and only if their ``Storage``
is one object. Called by: ``_tensor``, ``_operators``, ``_cache``, ``_dispatch`` and ``_recording``.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, Protocol

import torch

from torchfake._core import devices
from torchfake._core.source_location import RawLocation, SourceLocation
from torchfake._torch import subclass

_INVALID_ADDRESS = 1 << 62  # no processor has memory there


class FakeUntypedStorage(torch.UntypedStorage):
    """The result of ``fake.untyped_storage()``: a meta storage that reports the fake's device."""

    fake_device: torch.device = devices.CPU

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.fake_device

    def data_ptr(self) -> int:
        """A number that identifies the storage, since there is no address.

        transformers finds tied weights by it, and torch.load reuses a storage for other tensors
        only if it is not 0. It is no valid address: code that uses it cannot corrupt memory.
        """
        return _INVALID_ADDRESS | subclass.storage_key(self) if self.nbytes() else 0

    def resize_(self, size: int) -> FakeUntypedStorage:
        super().resize_(size)
        storage = self._discard_value()
        if storage is not None and storage.deferred is not None:
            storage.deferred.resize(size)
        return self

    def copy_(  # type: ignore[override]
        self, source: Any, non_blocking: bool | None = None
    ) -> FakeUntypedStorage:
        self._poison("untyped_storage().copy_")
        return self

    def fill_(self, value: Any) -> FakeUntypedStorage:
        self._poison("untyped_storage().fill_")
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        self._poison("an assignment to untyped_storage()[...]")

    def _poison(self, how: str) -> None:
        """Record that the bytes were written without an operator."""
        storage = self._discard_value()
        if storage is not None and storage.deferred is not None:
            storage.deferred.poison(how)

    def _discard_value(self) -> Storage | None:
        """Discard the known value: the bytes were written or freed without an operator."""
        storage = _by_key.get(subclass.storage_key(self))
        if storage is not None:
            storage.value = None
        return storage

    def __repr__(self) -> str:
        return f"[torchfake storage (device={self.fake_device}) of size {self.nbytes()}]"

    __str__ = __repr__


def new_untyped_storage(num_bytes: int, device: torch.device) -> FakeUntypedStorage:
    """A :class:`FakeUntypedStorage` of this size that reports `device`."""
    untyped = FakeUntypedStorage(num_bytes, device="meta")  # type: ignore[no-untyped-call]
    untyped.fake_device = device
    return untyped


class SharedBytes:
    """Known bytes that several storages share: they are not written any more."""

    __slots__ = ("value",)

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

    def poison(self, how: str) -> None:
        """Record that the bytes were written without an operator, by `how`."""

    def copy(self) -> DeferredProtocol:
        """The state of a copy of the storage."""


_pinned: weakref.WeakKeyDictionary[Storage, PinnedMemory] = weakref.WeakKeyDictionary()
_by_key: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()


class Storage:
    """A storage without memory: its size and device, the operator that made it, its known value."""

    __slots__ = (
        "__weakref__",
        "_num_bytes",
        "_untyped",
        "deferred",
        "device",
        "location",
        "op",
        "value",
    )

    def __init__(
        self,
        num_bytes: int,
        device: torch.device,
        op: Any = None,
        location: RawLocation | None = None,
        value: KnownValue | None = None,
    ) -> None:
        self._num_bytes = num_bytes
        self._untyped: FakeUntypedStorage | None = None
        self.device = device
        self.op = op  # the operator that made the storage
        self.location = location  # in user code, where it was called
        self.value = value  # on the CPU, of small tensors; None if unknown
        self.deferred: DeferredProtocol | None = None  # if operations on it are recorded

    @property
    def pinned(self) -> PinnedMemory | None:
        """The memory of a pinned storage. Few are: they have a table, and the others no slot."""
        return _pinned.get(self)

    @pinned.setter
    def pinned(self, memory: PinnedMemory) -> None:
        _pinned[self] = memory

    @property
    def num_bytes(self) -> int:
        return self._num_bytes if self._untyped is None else self._untyped.nbytes()

    def num_known_bytes(self) -> int:
        """The size of the known value. Bytes behind it, of a resize, were never written."""
        assert self.value is not None
        is_own = isinstance(self.value, torch.UntypedStorage)
        return self.value.nbytes() if is_own else self.value.num_bytes  # type: ignore[union-attr]

    def known_bytes(self) -> torch.UntypedStorage:
        """The bytes of the known value, to be read only."""
        assert self.value is not None
        if isinstance(self.value, ConstantFill):
            self.value = self.value.bytes()
        return self.value if isinstance(self.value, torch.UntypedStorage) else self.value.bytes()

    def writable_bytes(self) -> torch.UntypedStorage:
        """The bytes of the known value, to be written: copied first if they are shared."""
        known = self.known_bytes()
        if known is not self.value:
            self.value = known = known.clone()
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
    def untyped(self) -> FakeUntypedStorage:
        """The storage object that programs see, made on first request and kept as long as this."""
        if self._untyped is None:
            self._untyped = new_untyped_storage(self._num_bytes, self.device)
            _by_key[subclass.storage_key(self._untyped)] = self
        return self._untyped

    def address(self) -> int:
        """The address for ``data_ptr()``: valid only for pinned memory, which is allocated now."""
        pinned = self.pinned
        return self.untyped.data_ptr() if pinned is None else pinned.address(self.num_bytes)

    def copy(self) -> Storage:
        """A storage with the same size, device and value, which does not alias this one."""
        copied = Storage(self.num_bytes, self.device, self.op, self.location)
        copied.value = None if self.value is None else self.share()
        copied.deferred = None if self.deferred is None else self.deferred.copy()
        return copied

    def __reduce__(self) -> Any:
        return load_storage, (self.num_bytes, str(self.device))


def load_storage(num_bytes: int, device: str) -> Storage:
    """A storage from its pickle; the memo of pickle preserves aliasing."""
    return Storage(num_bytes, torch.device(device))


def storage_of(untyped: torch.UntypedStorage, device: torch.device | None = None) -> Storage:
    """The :class:`Storage` of a storage object from the user or from torch; new if it has none."""
    known = _by_key.get(subclass.storage_key(untyped))
    if known is not None:
        return known
    storage = Storage(untyped.nbytes(), device or untyped.device)
    if isinstance(untyped, FakeUntypedStorage):
        storage._untyped = untyped
        _by_key[subclass.storage_key(untyped)] = storage
    return storage
