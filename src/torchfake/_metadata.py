"""What a fake is: a metadata record, and the identity of the storage it looks at.

Enters: sizes, strides, dtypes, devices. Leaves: interned :class:`Metadata` and :class:`Storage`.
Invariants: equal records are one object, but for those on the two sides of a full table, so that
identity can stand for equality where a miss costs only time; two fakes alias if and only if their
``Storage`` is one object.
"""

from __future__ import annotations

import math
import weakref
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch

from torchfake import _device, _private
from torchfake._origin import Origin, Place

Ints = tuple[int, ...]


PLAIN, DEFERRED, DEFERRED_AS_META = range(3)
"""Marks: nothing is recorded; operations are; they are, and the fake reports ``meta``."""


class Metadata:
    """Shape, strides, dtype, device and the rest that torch knows without the data."""

    __slots__ = (
        "carrier",
        "conj",
        "device",
        "dtype",
        "layout",
        "neg",
        "offset",
        "size",
        "stride",
        "wrapper",
    )

    size: Ints
    stride: Ints
    offset: int  # in elements, as torch's storage_offset
    dtype: torch.dtype
    device: torch.device  # where the tensor would be
    mark = PLAIN  # or how its operations are recorded
    carrier: torch.device  # what its wrapper carries in C++
    layout: torch.layout
    conj: bool
    neg: bool
    wrapper: tuple[Any, ...] | None  # what makes a fake of it; filled in by torchfake._tensor

    @property
    def shown(self) -> torch.device:
        """The device that the fake reports."""
        return self.device

    @property
    def num_bytes(self) -> int:
        """Of its elements, each once."""
        return math.prod(self.size) * self.dtype.itemsize

    @property
    def is_in_order(self) -> bool:
        """Whether its elements lie in order, one behind the other."""
        return self.stride == contiguous_stride(self.size)

    def __repr__(self) -> str:
        return f"Metadata({self.dtype}{list(self.size)}, stride={self.stride}, {self.device})"


class _Deferred(Metadata):
    """Of a fake whose operations are recorded. A class of its own: plain ones must stay small."""

    __slots__ = ()
    mark = DEFERRED


class _DeferredAsMeta(Metadata):
    __slots__ = ()
    mark = DEFERRED_AS_META

    @property
    def shown(self) -> torch.device:
        return _device.META


_CLASSES = (Metadata, _Deferred, _DeferredAsMeta)
_MAX_INTERNED = 200_000
_interned: dict[tuple[Any, ...], Metadata] = {}


def intern(
    size: Ints,
    stride: Ints,
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
    layout: torch.layout = torch.strided,
    conj: bool = False,
    neg: bool = False,
    mark: int = PLAIN,
) -> Metadata:
    """The one record of this metadata."""
    key: tuple[Any, ...] = (size, stride, offset, dtype, device, layout, conj, neg)
    if mark:
        key = (*key, mark)
    record = _interned.get(key)
    return record if record is not None else _new_record(key)


def _new_record(key: tuple[Any, ...]) -> Metadata:
    if len(_interned) >= _MAX_INTERNED:
        _interned.clear()  # records live on in their tensors; only sharing with new ones is lost
        _twins.clear()
    record = _CLASSES[key[8] if len(key) > 8 else PLAIN]()
    (record.size, record.stride, record.offset, record.dtype) = key[:4]
    (record.device, record.layout, record.conj, record.neg) = key[4:8]
    record.carrier = _device.carrier(record.device)
    record.wrapper = None
    return _interned.setdefault(key, record)


def marked(record: Metadata, mark: int) -> Metadata:
    """The same with another mark."""
    twin = _twins.get((record, mark))
    if twin is None:
        place = (record.size, record.stride, record.offset, record.dtype, record.device)
        twin = intern(*place, record.layout, record.conj, record.neg, mark)
        _twins[record, mark] = twin
    return twin


_twins: dict[tuple[Metadata, int], Metadata] = {}


def metadata_of(tensor: torch.Tensor, device: torch.device) -> Metadata:
    """The record of a plain (real or meta) tensor, as if it were on `device`."""
    return intern(
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.dtype,
        device,
        tensor.layout,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def contiguous_stride(size: Ints) -> Ints:
    """The strides of a tensor of this size whose elements lie in order."""
    stride, step = [], 1
    for length in reversed(size):
        stride.append(step)
        step *= max(length, 1)
    return tuple(reversed(stride))


@lru_cache(maxsize=4096)
def is_dense(record: Metadata) -> bool:
    """Whether its elements are neighbours in memory, each once, in whatever order of dimensions."""
    step = 1
    for stride, length in sorted(zip(record.stride, record.size, strict=True)):
        if length != 1 and stride != step:
            return False
        step *= length
    return True


_NOWHERE = 1 << 62


def bytes_spanned(size: Any, stride: Any, offset: int, itemsize: int) -> int:
    """The bytes of storage, from its beginning, that a view of this size and stride reaches."""
    if 0 in size:
        return 0
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    return int((last + 1) * itemsize)


class FakeUntypedStorage(torch.UntypedStorage):
    """What ``fake.untyped_storage()`` gives: torch's meta storage, reporting the fake's device."""

    fake_device: torch.device = _device.CPU

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.fake_device

    def data_ptr(self) -> int:
        """An identity, there being no address: transformers finds tied weights by it, and
        torch.load keeps a storage for its other tensors only if it is not 0. No processor has
        memory there, so that code which reads it anyway cannot corrupt any.
        """
        return _NOWHERE | _private.storage_key(self) if self.nbytes() else 0

    def resize_(self, size: int) -> FakeUntypedStorage:
        super().resize_(size)
        storage = self._forget()
        if storage is not None and storage.recorded is not None:
            storage.recorded.resized(size)
        return self

    def copy_(  # type: ignore[override]
        self, source: Any, non_blocking: bool | None = None
    ) -> FakeUntypedStorage:
        self._spoil("untyped_storage().copy_")
        return self

    def fill_(self, value: Any) -> FakeUntypedStorage:
        self._spoil("untyped_storage().fill_")
        return self

    def __setitem__(self, place: Any, value: Any) -> None:
        self._spoil("an assignment to untyped_storage()[...]")

    def _spoil(self, how: str) -> None:
        storage = self._forget()
        if storage is not None and storage.recorded is not None:
            storage.recorded.spoil(how)

    def _forget(self) -> Storage | None:
        """The bytes are written, or gone, past all operators: what was known of them is too."""
        storage = _by_key.get(_private.storage_key(self))
        if storage is not None:
            storage.value = None
        return storage

    def __repr__(self) -> str:
        return f"[torchfake storage (device={self.fake_device}) of size {self.nbytes()}]"

    __str__ = __repr__


def new_untyped(num_bytes: int, device: torch.device) -> FakeUntypedStorage:
    untyped = FakeUntypedStorage(num_bytes, device="meta")  # type: ignore[no-untyped-call]
    untyped.fake_device = device
    return untyped


class Held:
    """Known bytes that more than one looks at: never written again."""

    __slots__ = ("value",)

    def __init__(self, value: torch.UntypedStorage | None) -> None:
        self.value = value

    def bytes(self) -> torch.UntypedStorage:
        assert self.value is not None
        return self.value

    @property
    def num_bytes(self) -> int:
        return self.bytes().nbytes()


class Filled(NamedTuple):
    """A known value that is one number all over: zeros, ones. Its bytes are made when they are
    read, which those of most biases never are.
    """

    number: Any
    dtype: torch.dtype
    num_bytes: int

    def bytes(self) -> torch.UntypedStorage:
        length = self.num_bytes // self.dtype.itemsize
        values = torch.empty(length, dtype=self.dtype, device="cpu")
        return values.fill_(self.number).untyped_storage()


Value = torch.UntypedStorage | Held | Filled
"""What a storage may know: its own bytes, those it shares, or what they would be."""


class Pinned:
    """Memory that was asked for as pinned, which somebody in C may fill: safetensors reads a file
    into it before the copy to a CUDA device.
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes: torch.UntypedStorage | None = None

    def address(self, num_bytes: int) -> int:
        if self._bytes is None:
            self._bytes = torch.UntypedStorage(num_bytes, device="cpu")
        return self._bytes.data_ptr()


class Recorded(Protocol):
    """What a deferred storage has more; see :mod:`torchfake._graph`."""

    mark: int

    def resized(self, num_bytes: int) -> None:
        """Take note that there are more or fewer bytes."""

    def spoil(self, how: str) -> None:
        """Take note that the bytes were written past all operators."""

    def copy(self) -> Recorded:
        """The same for a copy of the storage."""


_pinned: weakref.WeakKeyDictionary[Storage, Pinned] = weakref.WeakKeyDictionary()
_by_key: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()


class Storage:
    """A stretch of memory that is not there: its size, device, origin, and value where known."""

    __slots__ = (
        "__weakref__",
        "_num_bytes",
        "_untyped",
        "device",
        "op",
        "place",
        "recorded",
        "value",
    )

    def __init__(
        self,
        num_bytes: int,
        device: torch.device,
        op: Any = None,
        place: Place | None = None,
        value: Value | None = None,
    ) -> None:
        self._num_bytes = num_bytes
        self._untyped: FakeUntypedStorage | None = None
        self.device = device
        self.op = op  # the operator that made it
        self.place = place  # where in the user's code
        self.value = value  # on the host, of small tensors
        self.recorded: Recorded | None = None  # of a deferred storage: what it will hold

    @property
    def pinned(self) -> Pinned | None:
        """Of the few that are pinned; kept beside them all, since each word of a storage counts."""
        return _pinned.get(self)

    @pinned.setter
    def pinned(self, memory: Pinned) -> None:
        _pinned[self] = memory

    @property
    def num_bytes(self) -> int:
        return self._num_bytes if self._untyped is None else self._untyped.nbytes()

    def num_known_bytes(self) -> int:
        """How large it was when its value became known: behind that, nobody has written."""
        assert self.value is not None
        is_own = isinstance(self.value, torch.UntypedStorage)
        return self.value.nbytes() if is_own else self.value.num_bytes  # type: ignore[union-attr]

    def known_bytes(self) -> torch.UntypedStorage:
        """The value, which is known, as bytes to be read."""
        assert self.value is not None
        if isinstance(self.value, Filled):
            self.value = self.value.bytes()
        return self.value if isinstance(self.value, torch.UntypedStorage) else self.value.bytes()

    def own_bytes(self) -> torch.UntypedStorage:
        """The same, to be written too."""
        known = self.known_bytes()
        if known is not self.value:
            self.value = known = known.clone()
        return known

    def share(self) -> Held | Filled:
        """The value as it is now, whatever is written afterwards."""
        assert self.value is not None
        if isinstance(self.value, torch.UntypedStorage):
            self.value = Held(self.value)
        return self.value

    @property
    def origin(self) -> Origin | None:
        return None if self.place is None else Origin(*self.place)

    @property
    def untyped(self) -> FakeUntypedStorage:
        """Torch's view of this storage, made when first asked for and kept as long as this."""
        if self._untyped is None:
            self._untyped = new_untyped(self._num_bytes, self.device)
            _by_key[_private.storage_key(self._untyped)] = self
        return self._untyped

    def address(self) -> int:
        """Where the bytes are: nowhere, but for pinned memory, which is real once asked for."""
        pinned = self.pinned
        return self.untyped.data_ptr() if pinned is None else pinned.address(self.num_bytes)

    def copy(self) -> Storage:
        """A storage of its own with the same size, device and value."""
        twin = Storage(self.num_bytes, self.device, self.op, self.place)
        twin.value = None if self.value is None else self.share()
        twin.recorded = None if self.recorded is None else self.recorded.copy()
        return twin

    def __reduce__(self) -> Any:
        return load_storage, (self.num_bytes, str(self.device))


def load_storage(num_bytes: int, device: str) -> Storage:
    """What a pickled storage calls to come back; pickle's memo keeps aliases aliases."""
    return Storage(num_bytes, torch.device(device))


def storage_of(untyped: torch.UntypedStorage, device: torch.device | None = None) -> Storage:
    """The record behind a storage a user or torch handed over; a new one if it is a stranger."""
    known = _by_key.get(_private.storage_key(untyped))
    if known is not None:
        return known
    storage = Storage(untyped.nbytes(), device or untyped.device)
    if isinstance(untyped, FakeUntypedStorage):
        storage._untyped = untyped
        _by_key[_private.storage_key(untyped)] = storage
    return storage
