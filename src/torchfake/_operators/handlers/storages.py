"""The handlers of ``set_``, which makes a fake view another storage, of views by size and stride,
and of pinned memory.

Input: a fake, and a storage or tensor, fake or real. Output: the fake, on that storage, a view of
its own, or a copy on a pinned one. Invariant: a real storage becomes a fake storage, and no memory
is written; no view by size and stride is larger than its storage.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import modes, source_location
from torchfake._core.metadata import bytes_spanned, contiguous_stride, intern
from torchfake._core.storage import PinnedMemory, Storage
from torchfake._graph import deferred_storage, operations
from torchfake._operators.interpreter import interpret
from torchfake._operators.operator_call import Args, Kwargs, named_arguments
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy, rebind
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake.errors import RealTensorWriteError


def set_storage(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The handler of ``set_``. torch.load and safetensors pass real storages: these become fake
    storages, with known values if they are small.
    """
    fake, source = args[0], (args[1] if len(args) > 1 else None)
    if not isinstance(fake, FakeTensor):
        if isinstance(source, FakeTensor):
            raise RealTensorWriteError("a real tensor cannot view the storage of a fake (set_)")
        return func(*args, **kwargs)
    storage = _storage_to_set(fake, source)
    mark = fake._fake_meta.mark
    if mark and storage.deferred is None:
        storage.deferred = _deferred_state_of(source, storage, mark)
    size, stride, offset = _view_to_set(fake, source, args[2:], storage)
    needed = bytes_spanned(size, stride, offset, fake.dtype.itemsize)
    if needed > storage.num_bytes and not isinstance(source, torch.Tensor):
        storage.resize(needed)
    conj, neg = fake._fake_meta.conj, fake._fake_meta.neg
    record = intern(size, stride, offset, fake.dtype, storage.device, conj=conj, neg=neg)
    rebind(fake, record, storage)
    return fake


def _storage_to_set(fake: FakeTensor, source: Any) -> Storage:
    if source is None:
        return Storage(0, fake.device)
    if isinstance(source, FakeTensor):
        return source._fake_storage
    if isinstance(source, FakeUntypedStorage):
        return source._fake_storage
    if isinstance(source, torch.Tensor):
        return fake_copy(source, known=True)._fake_storage
    device = source.device if source.device.type != "meta" else fake.device
    storage = Storage(source.nbytes(), device, location=source_location.caller_location(3))
    state = modes.current()
    loading = state is not None and state.is_loading
    if source.device.type == "cpu" and not loading:
        known_values.store_value(storage, source, fake.dtype)
    return storage


def _deferred_state_of(source: Any, storage: Storage, mark: int) -> deferred_storage.DeferredState:
    """The deferred state of a storage that had none: its real memory, a copy of its known value, or
    uninitialized memory.
    """
    untyped = source.untyped_storage() if isinstance(source, torch.Tensor) else source
    if isinstance(untyped, torch.UntypedStorage) and untyped.device.type != "meta":
        if not isinstance(untyped, FakeUntypedStorage):
            return deferred_storage.deferred_from_real(untyped, mark)
        if storage.is_known:
            return deferred_storage.deferred_from_copy(storage.known_bytes(), mark)
    cell = operations.Cell(storage.num_bytes, storage.device)
    deferred = deferred_storage.DeferredState(cell, None, mark)
    if isinstance(untyped, FakeUntypedStorage):
        deferred.refuse(
            "a deferred tensor was given the storage of a plain fake tensor (set_), which has no "
            "values: make that one in torchfake.deferred_mode too"
        )
    return deferred


def _view_to_set(fake: FakeTensor, source: Any, place: Args, storage: Storage) -> Any:
    """The size, stride and offset that ``set_`` gives: those passed, else those of the source."""
    if place:
        offset, size = place[0], tuple(place[1])
        stride = tuple(place[2]) if len(place) > 2 and place[2] else contiguous_stride(size)
        return size, stride, offset
    if isinstance(source, torch.Tensor):
        return tuple(source.shape), source.stride(), int(source.storage_offset())
    return (storage.num_bytes // fake.dtype.itemsize,), (1,), 0


def is_pinned(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether a fake is on memory that was asked for as pinned; of a real tensor, torch knows."""
    if not isinstance(args[0], FakeTensor):
        return bool(func(*args, **kwargs))
    return args[0]._fake_storage.pinned is not None


def is_set_to(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether two fakes lie alike in one storage, of whatever dtypes: meta has no such kernel."""
    if not any(isinstance(tensor, FakeTensor) for tensor in args):
        return bool(func(*args, **kwargs))
    one, other = args
    lie_alike = (one.size(), one.stride(), one.storage_offset()) == (
        other.size(), other.stride(), other.storage_offset()
    )  # fmt: skip
    both = isinstance(one, FakeTensor) and isinstance(other, FakeTensor)
    return both and lie_alike and one._fake_storage is other._fake_storage


def pin_memory(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A copy in pinned memory has the metadata of a clone."""
    if args[0].device.type != "cpu":
        raise RuntimeError(f"cannot pin '{args[0].type()}' only dense CPU tensors can be pinned")
    if func is torch.ops.aten.pin_memory.default and is_pinned(func, args[:1], {}):
        return args[0]
    copy = interpret(torch.ops.aten.clone.default, args[:1], {})
    copy._fake_storage.pinned = PinnedMemory()
    return copy


def as_strided(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The handler of views by size and stride, and of their copies: a meta kernel would grow the
    storage, or reads none; eager refuses what does not fit.
    """
    given = named_arguments(func, args, kwargs)
    fake = given["self"]
    if isinstance(fake, FakeTensor):
        start, available = fake._fake_meta.offset, fake._fake_storage.num_bytes
        if func is torch.ops.aten.as_strided_scatter.default:
            start, available = _place_of_copy(fake)
        offset = given.get("storage_offset")
        start = start if offset is None else offset
        _check_bounds(given["size"], given["stride"], start, fake.dtype.itemsize, available)
    return interpret(func, args, kwargs)


def _place_of_copy(fake: FakeTensor) -> tuple[int, int]:
    """Where ``as_strided_scatter`` copies its argument to: the offset, and the size of the storage
    (``clone_preserve_strides``, aten/src/ATen/native/TensorShape.cpp).
    """
    if fake.requires_grad and not fake.is_contiguous():
        raise RuntimeError("as_strided_scatter is currently only supported for contiguous inputs")
    repeats = any(n > 1 and not step for n, step in zip(fake.shape, fake.stride(), strict=True))
    if repeats:
        return 0, fake.numel() * fake.dtype.itemsize
    return fake._fake_meta.offset, fake._fake_storage.num_bytes


def _check_bounds(size: Any, stride: Any, start: int, itemsize: int, available: int) -> None:
    needed = bytes_spanned(size, stride, start, itemsize)
    if needed > available:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {start}, "
            f"and itemsize {itemsize} requiring a storage size of {needed} are out of bounds "
            f"for storage of size {available}"
        )
