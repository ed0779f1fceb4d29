"""Files of tensors, opened inside a mode: no values are read.

Input: the arguments of ``torch.load`` and ``UntypedStorage.from_file``, which safetensors calls.
Output: fakes; deferred fakes refer to bytes of the file, which are read when the fakes are
materialized. Invariant: outside a mode, or on another thread, each is the original; if the file was
changed before its bytes are read, reading them is an error.

Both libraries map a file into memory and take slices of the mapping. So one class covers both:
:class:`FileStorage` stands for the mapping, and its slices are storages of fakes.
"""

from __future__ import annotations

import functools
import io
import os
import weakref
from typing import Any

import torch

from torchfake._core import devices, modes, source_location
from torchfake._core.modes import ModeState
from torchfake._core.storage import Storage
from torchfake._graph.deferred_storage import deferred_from_copy, deferred_from_file
from torchfake._graph.file_slices import File, FileBytes, FileSlice
from torchfake._patches.patch import Patch, replacing
from torchfake._tensor import known_values
from torchfake._tensor.storages import FakeUntypedStorage

_STORAGES = (torch.UntypedStorage, torch.TypedStorage)


class FileStorage(FakeUntypedStorage):
    """A storage that stands for a file mapped into memory: none of its bytes are read."""

    _source: FileSlice
    _parts: weakref.WeakValueDictionary[tuple[int, int], Storage]  # equal slices share memory
    _mark: int

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return super().__getitem__(index)
        start, stop, step = index.indices(self.nbytes())
        if step != 1:
            raise RuntimeError(
                f"Trying to slice with a step of {step}, but only a step of 1 is supported"
            )
        stop = max(start, stop)
        part = self._parts.get((start, stop))
        if part is None:
            part = _storage_of(self._source.part(start, stop), self._mark)
            self._parts[start, stop] = part
        return part.untyped


def _storage_of(source: FileSlice, mark: int) -> Storage:
    """A storage with the bytes of a file: recorded, or known if they are few."""
    location = source_location.caller_location()
    storage = Storage(source.num_bytes, devices.CPU, None, location)
    if mark:
        storage.deferred = deferred_from_file(source, mark, location)
    elif source.num_bytes <= known_values.MAX_KNOWN_BYTES:
        storage.value = FileBytes(source)
    return storage


def _map_without_data(original: Any) -> Any:
    """``UntypedStorage.from_file``. A shared mapping stays real: writes to it go to the file."""
    function = torch.UntypedStorage.from_file

    @functools.wraps(function)
    def replacement(filename: Any, shared: bool = False, nbytes: int = 0) -> Any:
        state = modes.current()
        path = os.fspath(filename)
        if state is None or shared or not os.path.isfile(path):
            return function(filename, shared, nbytes)
        file = File(path)
        if nbytes > file.num_bytes:
            return function(filename, shared, nbytes)  # raises torch's error
        source = FileSlice(file, 0, nbytes or file.num_bytes)
        mapped = FileStorage(0, device="meta")  # type: ignore[no-untyped-call]
        mapped._fake_storage = _storage_of(source, state.mark)
        mapped._source, mapped._mark = source, state.mark
        mapped._parts = weakref.WeakValueDictionary()
        return mapped

    return staticmethod(replacement)


# torch.load.


@replacing
def _load_without_data(
    original: Any, /, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """``torch.load``: only sizes and devices of storages are read, not their bytes."""
    state = modes.current()
    is_refused = kwargs.get("mmap") and not isinstance(f, (str, os.PathLike))
    if state is None or state.is_loading or is_refused:
        return original(f, map_location, *args, **kwargs)
    state.is_loading = True
    if map_location is not None:
        modes.thread.locate = functools.partial(_locate_pickled, map_location)
    try:
        if str(map_location) == "meta":
            return original(f, map_location, *args, **kwargs)
        if state.mark:
            return _load_deferred(original, f, map_location, state, args, kwargs)
        return _load_fake(original, f, map_location, args, kwargs)
    finally:
        state.is_loading, modes.thread.locate = False, None


def _locate_pickled(map_location: Any, num_bytes: int, location: str) -> torch.device:
    """The device to which `map_location` moves a fake that was saved."""
    target = _located(map_location, Storage(num_bytes, devices.CPU).untyped, location)
    return target.device if isinstance(target, _STORAGES) else devices.resolve(target)


def _load_fake(original: Any, f: Any, map_location: Any, args: Any, kwargs: Any) -> Any:
    """Load plain fakes without their values; small tensors refer to their bytes in the file."""
    locate: Any = functools.partial(_locate_fake, map_location)
    path = _path_of(f)
    if path is not None and _is_zip(path):
        return original(path, locate, *args, **{**kwargs, "mmap": True})
    if isinstance(f, io.BytesIO) and bytes(f.getbuffer()[f.tell() :][:4]) == b"PK\x03\x04":
        locate = functools.partial(locate, is_read=True)  # the file is in memory already
        return original(f, locate, *args, **kwargs)
    with torch.serialization.skip_data():
        return original(f, locate, *args, **kwargs)


def _load_deferred(
    original: Any, f: Any, map_location: Any, state: ModeState, args: Any, kwargs: Any
) -> Any:
    path = _path_of(f)
    if path is not None and _is_zip(path):
        f, kwargs = path, {**kwargs, "mmap": True}
    locate = functools.partial(_locate_deferred, map_location, state.mark)
    return original(f, locate, *args, **kwargs)


def _path_of(f: Any) -> str | None:
    """The path `f`, or that of a file object `f` at its beginning; None for other objects."""
    if isinstance(f, (str, os.PathLike)):
        return os.fspath(f) if os.path.isfile(f) else None
    name = getattr(f, "name", None)
    if not isinstance(name, str) or not hasattr(f, "fileno") or not os.path.isfile(name):
        return None
    is_same = os.path.samestat(os.fstat(f.fileno()), os.stat(name))
    return name if is_same and f.tell() == 0 else None


def _is_zip(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _located(map_location: Any, storage: Any, location: str) -> Any:
    """The device that a storage goes to; or a storage, if `map_location` moves it itself."""
    if callable(map_location):
        moved = map_location(storage, location)
        return location if moved is None else moved
    if isinstance(map_location, dict):
        return map_location.get(location, location)
    return location if map_location is None else map_location


def _locate_fake(map_location: Any, storage: Any, location: str, *, is_read: bool = False) -> Any:
    """The ``map_location`` with which plain fakes are loaded, after its first argument: moves each
    storage to its device, and keeps the values of small ones.
    """
    fake = storage
    if not isinstance(storage, FakeUntypedStorage):
        known = Storage(storage.nbytes(), devices.CPU)
        if is_read:
            known_values.store_value(known, storage, torch.uint8)
        fake = known.untyped
    target = _located(map_location, fake, location)
    if isinstance(target, _STORAGES):
        return target
    device = devices.resolve(target)
    if fake._fake_storage.value is None:
        return Storage(storage.nbytes(), device).untyped
    return fake if fake.device == device else fake.to(device=device)


def _locate_deferred(map_location: Any, mark: int, storage: Any, location: str) -> Any:
    """The ``map_location`` with which deferred fakes are loaded, after its first two arguments. A
    storage is a slice of a mapped file, has values, or is filled at the end of an old-format file.
    """
    if not isinstance(storage, FakeUntypedStorage):
        storage = _deferred_storage(storage, mark)
    target = _located(map_location, storage, location)
    if isinstance(target, _STORAGES):
        return target
    device = devices.resolve(target)
    return storage if storage.device == device else storage.to(device=device)


@replacing
def _location_of_wrapper(original: Any, device: Any) -> Any:
    """Location of a wrapper subclass, for which torch refuses a function as ``map_location``."""
    loading = torch.serialization._serialization_tls
    ours: Any = loading.map_location
    if getattr(ours, "func", None) not in (_locate_fake, _locate_deferred):
        return original(device)
    loading.map_location = ours.args[0]
    try:
        return original(device)
    finally:
        loading.map_location = ours


def _deferred_storage(real: torch.UntypedStorage, mark: int) -> FakeUntypedStorage:
    if getattr(real, "_torch_load_uninitialized", False):
        return _unread_storage(real.nbytes(), devices.CPU, mark)
    storage = Storage(real.nbytes(), devices.CPU)
    storage.deferred = deferred_from_copy(real, mark)
    untyped: FakeUntypedStorage = storage.untyped
    return untyped


class _UnreadStorage(FakeUntypedStorage):
    """A storage that ``torch.load`` fills at the end of a file of the old format."""

    def to(self, *, device: Any, non_blocking: bool = False) -> Any:
        target = devices.resolve(device)
        if target == self.device:
            return self
        return _unread_storage(self.nbytes(), target, self._fake_storage.deferred.mark)  # type: ignore[union-attr]

    def _set_from_file(self, f: Any, offset: int | None, is_file: bool, itemsize: int) -> Any:
        """Read the storage at `offset`, or where `f` is: the number of elements, then the bytes."""
        state: Any = self._fake_storage.deferred
        start = (f.tell() if offset is None else offset) + _COUNT_BYTES
        f.seek(start)
        path = getattr(f, "name", None) if is_file else None
        if isinstance(path, str) and os.path.isfile(path):
            filled = _storage_of(FileSlice(File(path), start, self.nbytes()), state.mark)
            f.seek(start + self.nbytes())
        else:
            data = bytearray(f.read(self.nbytes()))
            with known_values.without_fake_mode():
                real = torch.UntypedStorage(len(data))
                for_bytes = torch.frombuffer(data, dtype=torch.uint8) if data else None
                if for_bytes is not None:
                    real.copy_(for_bytes.untyped_storage())
            filled = Storage(len(data), devices.CPU)
            filled.deferred = deferred_from_copy(real, state.mark)
        moved = filled.untyped
        if self.device != devices.CPU:
            moved = moved.to(device=self.device)
        state.contents = moved._fake_storage.deferred.contents
        return self


_COUNT_BYTES = 8  # the size of the number of elements


def _unread_storage(num_bytes: int, device: torch.device, mark: int) -> _UnreadStorage:
    with known_values.without_fake_mode():
        zeros = deferred_from_copy(torch.UntypedStorage(0), mark)
    storage = Storage(num_bytes, device)
    storage.deferred = zeros
    handle = _UnreadStorage(0, device="meta")  # type: ignore[no-untyped-call]
    handle._fake_storage = storage
    storage.meta.handle = weakref.ref(handle)
    return handle


PATCHES = [
    Patch(torch.UntypedStorage, "from_file", _map_without_data),
    Patch(torch, "load", _load_without_data),
    Patch(torch._utils, "_get_restore_location", _location_of_wrapper),
]
