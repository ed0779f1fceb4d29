"""The storage objects of fakes: the results of ``fake.untyped_storage()`` and ``fake.storage()``.

Input: a :class:`Storage`. Output: storage objects of torch's classes whose methods change the fake
as they change memory in eager mode, by operators on a tensor of the storage's bytes. Invariant: a
storage object keeps its storage alive, with its value or record, when no tensor is left; memory
that C++ would read by itself is made real, or the call is refused.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial
from operator import methodcaller
from typing import Any

import torch

from torchfake._core.memory import flat_view
from torchfake._core.metadata import intern
from torchfake._core.storage import Storage
from torchfake._replay.first_use import make_real
from torchfake._tensor import known_values
from torchfake._tensor.address import Address
from torchfake._tensor.fake_tensor import FakeTensor, new_fake
from torchfake._torch import dispatcher, subclass
from torchfake.errors import RecordError, UnknownValueError

_INVALID_ADDRESS = 1 << 62  # no processor has memory there

_shared: weakref.WeakSet[Storage] = weakref.WeakSet()
"""Storages without memory that were moved to shared memory."""


class FakeUntypedStorage(torch.UntypedStorage):
    """The result of ``fake.untyped_storage()``."""

    _fake_storage: Storage

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._fake_storage.device

    @property
    def _cdata(self) -> int:
        """A number that all objects of one storage share, even after some are freed."""
        return subclass.storage_key(self._fake_storage.meta)

    def _weak_ref(self) -> Any:
        return self._fake_storage.meta._weak_ref()

    def nbytes(self) -> int:
        return self._fake_storage.num_bytes

    size = __len__ = nbytes

    def data_ptr(self) -> Any:
        """A number that identifies the storage: transformers finds tied weights by the number, and
        torch.load reuses a storage for other tensors only if the number is not 0.
        """
        storage = self._fake_storage
        if sys._getframe(1).f_code.co_filename == torch.serialization.__file__:
            raise _cannot_be_saved(self)  # C++ would write the memory to the file
        if storage.pinned is not None:
            if storage.deferred is not None:  # C code writes to it
                return _real_address(storage)
            return storage.pinned.address(storage.num_bytes)
        if not storage.num_bytes:
            return 0
        return Address(_INVALID_ADDRESS | self._cdata, partial(_real_address, storage))

    # Values: what the program reads and writes are bytes.

    def as_tensor(self, dtype: torch.dtype = torch.uint8) -> FakeTensor:
        """The whole storage as a fake of one dimension."""
        length = self.nbytes() // dtype.itemsize
        return new_fake(intern((length,), (1,), 0, dtype, self.device), self._fake_storage)

    def typed(self, dtype: torch.dtype) -> FakeTypedStorage:
        return FakeTypedStorage(self, dtype)

    def tolist(self) -> Any:
        return self.as_tensor().tolist()

    def __iter__(self) -> Any:
        return iter(self.tolist())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # shares memory with this storage
            return real_storage(self._fake_storage, "a slice of a storage")[index]
        return self.as_tensor()[index].item()

    def __setitem__(self, index: Any, value: Any) -> None:
        byte = torch.UntypedStorage(1)
        byte[0] = value  # raises what torch raises for a bad value
        if isinstance(index, slice):
            start, stop, step = index.indices(self.nbytes())
            if step != 1:
                raise RuntimeError(
                    f"Trying to slice with a step of {step}, but only a step of 1 is supported"
                )
            self.as_tensor()[start:stop].fill_(byte[0])
        elif not 0 <= index < self.nbytes():
            raise RuntimeError("out of bounds")
        else:
            self.as_tensor()[index].fill_(byte[0])

    def fill_(self, value: Any) -> FakeUntypedStorage:
        byte: Any = torch.UntypedStorage(1)
        self.as_tensor().fill_(byte.fill_(value)[0])  # raises what torch raises
        return self

    def copy_(  # type: ignore[override]
        self, source: Any, non_blocking: bool | None = None
    ) -> FakeUntypedStorage:
        if source.nbytes() != self.nbytes():
            raise RuntimeError(
                f"size does not match, self was {self.nbytes()} bytes but src was "
                f"{source.nbytes()} bytes"
            )
        self.as_tensor().copy_(_bytes_of(getattr(source, "_untyped_storage", source)))
        return self

    def resize_(self, size: int) -> FakeUntypedStorage:
        self._fake_storage.resize(size)
        observed = dispatcher.current_fake_mode()
        if hasattr(observed, "storage_resized"):  # no operator was dispatched
            observed.storage_resized(self._fake_storage)
        return self

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        is_query = dtype is None
        return "torch.storage.UntypedStorage" if is_query else super().type(dtype, non_blocking)

    # Copies.

    def clone(self) -> Any:
        return self.as_tensor().clone().untyped_storage()

    def cpu(self) -> Any:
        return self if self.device.type == "cpu" else self.as_tensor().cpu().untyped_storage()

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        return self.to(device="cuda" if device is None else device)

    def to(self, *, device: Any, non_blocking: bool = False) -> Any:
        moved = self.as_tensor().to(device)
        return self if moved.device == self.device else moved.untyped_storage()

    def _to(self, dtype: torch.dtype) -> Any:
        return _converted(self.as_tensor(), dtype)

    def is_pinned(self, device: Any = None) -> bool:
        return self.as_tensor().is_pinned()

    def pin_memory(self, device: Any = None) -> Any:
        return self.as_tensor().pin_memory().untyped_storage()

    def __reduce_ex__(self, protocol: Any) -> Any:
        deferred: Any = self._fake_storage.deferred
        if deferred is None:
            return load_untyped, (self._fake_storage,)
        real = real_storage(self._fake_storage, "pickle")  # torch cannot load one from its pickle
        return methodcaller("untyped_storage"), (flat_view(real, torch.uint8),)

    # Memory that is shared, or that C++ reads.

    def is_shared(self) -> bool:
        """Whether other processes can have the memory; on CUDA they always can."""
        if self.device.type == "cuda":
            return True
        deferred: Any = self._fake_storage.deferred
        if deferred is None or deferred.real is None:
            return self._fake_storage in _shared
        return bool(deferred.real.is_shared())

    def share_memory_(self) -> FakeUntypedStorage:
        if self._fake_storage.deferred is None:
            _shared.add(self._fake_storage)
        else:
            real_storage(self._fake_storage, "share_memory_()").share_memory_()
        return self

    def __repr__(self) -> str:
        return f"[torchfake storage (device={self.device}) of size {self.nbytes()}]"

    __str__ = __repr__


def _delegated(name: str) -> Any:
    """A method that C++ implements on memory: calls the method of the real storage."""

    def method(self: FakeUntypedStorage, *args: Any, **kwargs: Any) -> Any:
        return getattr(real_storage(self._fake_storage, f"{name}()"), name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    "_byteswap", "_set_from_file", "_share_cuda_", "_share_fd_cpu_", "_share_filename_cpu_",
    "_shared_decref", "_shared_incref", "_write_file",
):  # fmt: skip
    setattr(FakeUntypedStorage, _name, _delegated(_name))


class FakeTypedStorage(torch.TypedStorage):
    """The result of ``fake.storage()``. Methods that would make real tensors are overridden."""

    def __new__(cls, untyped: FakeUntypedStorage, dtype: torch.dtype) -> FakeTypedStorage:
        return object.__new__(cls)

    def __init__(self, untyped: FakeUntypedStorage, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._untyped_storage = untyped

    def _new_wrapped_storage(self, untyped_storage: Any) -> Any:
        if isinstance(untyped_storage, FakeUntypedStorage):
            return untyped_storage.typed(self.dtype)
        return torch.TypedStorage(wrap_storage=untyped_storage, dtype=self.dtype, _internal=True)

    def _as_tensor(self) -> FakeTensor:
        untyped: Any = self._untyped_storage
        tensor: FakeTensor = untyped.as_tensor(self.dtype)
        return tensor

    def _getitem(self, idx: Any) -> Any:
        if isinstance(idx, slice):
            raise RuntimeError("slices are only supported in UntypedStorage.__getitem__")
        if not isinstance(idx, int):
            raise RuntimeError(f"can't index a {type(self)} with {type(idx)}")
        index = self._maybe_wrap_index(idx)  # type: ignore[no-untyped-call]
        return self._as_tensor()[index].item()

    def _setitem(self, idx: Any, value: Any) -> None:
        if not isinstance(idx, (int, slice)):
            raise RuntimeError(f"can't index a {type(self)} with {type(idx)}")
        if torch.is_storage(value):
            raise RuntimeError(f"cannot set item with value type {type(value)}")
        self._as_tensor()[idx] = value

    def tolist(self) -> Any:
        return self._as_tensor().tolist()

    def __iter__(self) -> Any:
        return iter(self.tolist())

    def _to(self, dtype: torch.dtype) -> Any:
        return _converted(self._as_tensor(), dtype)

    def __reduce__(self) -> Any:
        storage: Any = self._untyped_storage._fake_storage  # type: ignore[attr-defined]
        if storage.deferred is not None:
            real = real_storage(storage, "pickle")
            typed = torch.TypedStorage(wrap_storage=real, dtype=self.dtype, _internal=True)
            return typed.__reduce__()
        return load_typed, (self._untyped_storage, self.dtype)

    def pickle_storage_type(self) -> str:
        return super()._pickle_storage_type()  # type: ignore[no-untyped-call, no-any-return]

    def _pickle_storage_type(self) -> str:
        """Refuse ``torch.save``, in which C++ would write the memory to the file."""
        raise _cannot_be_saved(self)

    def __repr__(self) -> str:
        device, length = self._untyped_storage.device, len(self._as_tensor())
        return f"[torchfake storage (dtype={self.dtype}, device={device}) of size {length}]"

    __str__ = __repr__


def _cannot_be_saved(storage: Any) -> RecordError:
    return RecordError(
        f"{storage} cannot be saved, since it has no memory: save the tensor that uses it, or "
        "materialize that first"
    )


def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> Any:
    """The typed storage of a conversion of `tensor`, which is a copy."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"Argument 'dtype' must be torch.dtype, not {type(dtype)}")
    return tensor.to(dtype, copy=True)._typed_storage()


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    if isinstance(storage, FakeUntypedStorage):
        return storage.as_tensor()
    with known_values.without_fake_mode():
        return flat_view(storage, torch.uint8)


def real_storage(storage: Storage, requested_by: str) -> torch.UntypedStorage:
    """The real memory of a deferred storage, which is computed if there is none yet.

    Raises:
        UnknownValueError: for the storage of a plain fake, which has no memory.
    """
    deferred: Any = storage.deferred
    if deferred is not None:
        return make_real(deferred)
    made_by = "" if storage.op is None else f", made by {storage.op}"
    at = "" if storage.source_location is None else f" at {storage.source_location}"
    raise UnknownValueError(
        f"{requested_by} needs the memory of a fake tensor, and it has none: {storage.num_bytes:,} "
        f"bytes on {storage.device}{made_by}{at}. Give this code a real tensor, or skip it for "
        "fakes with torchfake.is_fake(tensor); a model whose values are wanted later is built with "
        "torchfake.deferred_init and materialized with torchfake.materialize_module"
    )


def _real_address(storage: Storage) -> int:
    return real_storage(storage, "code that reads an address, data_ptr(),").data_ptr()


def _make_handle(storage: Storage) -> FakeUntypedStorage:
    handle = FakeUntypedStorage(0, device="meta")  # type: ignore[no-untyped-call]
    handle._fake_storage = storage
    return handle


def load_untyped(storage: Storage) -> FakeUntypedStorage:
    """Rebuild a storage object from its pickle."""
    untyped: FakeUntypedStorage = storage.untyped
    return untyped


def load_typed(untyped: FakeUntypedStorage, dtype: torch.dtype) -> FakeTypedStorage:
    """Rebuild a typed storage object from its pickle."""
    return untyped.typed(dtype)


Storage.make_handle = staticmethod(_make_handle)
