"""The operators that one general rule does not fit.

Enters: an operator and its arguments. Leaves: its result. Each handler says why its operator is
here. Invariant: ``HANDLERS`` is the whole list; nothing else asks for an operator by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchfake import _collectives, _device, _graph, _origin, _private, _state, _values
from torchfake._call import Args, Kwargs
from torchfake._checks import check_fill
from torchfake._follow import is_known, value_argument
from torchfake._interpret import interpret
from torchfake._metadata import (
    FakeUntypedStorage,
    Storage,
    bytes_spanned,
    contiguous_stride,
    intern,
    storage_of,
)
from torchfake._tensor import FakeTensor, become, fake_twin, new_fake
from torchfake.errors import RealTensorWriteError, UnsupportedOpError

aten = torch.ops.aten

Handler = Callable[[Any, Args, Kwargs], Any]
HANDLERS: dict[int, tuple[Any, Handler]] = {}
"""By the operator's identity: its own hash is a Python call."""


def handles(*overloads: Any) -> Callable[[Handler], Handler]:
    """Register a handler for operator overloads."""

    def register(handler: Handler) -> Handler:
        for overload in overloads:
            HANDLERS[id(overload)] = overload, handler
        return handler

    return register


@handles(aten._local_scalar_dense.default)
def read_scalar(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``item()``: the known value; of an unknown one that torch asks for, the settled answer."""
    fake = args[0]
    if not isinstance(fake, FakeTensor):
        return func(*args, **kwargs)
    if fake._fake_storage.value is None:
        answer = _origin.asked_by(_private.settled_questions())
        if answer is not None:
            return answer
    return _values.read(fake, "item()").item()


@handles(aten.lift_fresh.default, aten.lift.default)
def lift(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Data that C++ made from Python objects or numpy arrays: a fake with its value.

    Only a mode sees these for a real tensor.
    """
    source = args[0]
    if isinstance(source, FakeTensor):
        return source
    return fake_twin(source, known=True)


@handles(aten.detach.default, aten.alias.default)
def same_view(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The whole of a tensor again: no kernel has anything to say. Every Parameter begins here."""
    source = args[0]
    if not isinstance(source, FakeTensor):
        return func(*args, **kwargs)
    return new_fake(source._fake_meta, source._fake_storage)


@handles(
    aten.normal_.default,
    aten.uniform_.default,
    getattr(aten.random_, "from"),
    aten.bernoulli_.float,
)
def fill_with_draws(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Random fills: their meta kernels check nothing, and they leave metadata as it was."""
    fake = args[0]
    check_fill(func, args[1:])
    if not (isinstance(fake, FakeTensor) and fake.dtype.is_floating_point and fake.dim() > 0):
        return interpret(func, args, kwargs)
    fake._fake_storage.value = None
    return fake


_PLAIN_OPTIONS = frozenset({"dtype", "device"})


@handles(aten.empty.memory_format)
def empty(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Memory of floats in order, as every weight begins: nothing for a kernel to find out."""
    size, dtype = tuple(args[0]), kwargs.get("dtype") or torch.get_default_dtype()
    target = _device.resolve(kwargs.get("device") or _device.CPU)
    plain = not kwargs.get("pin_memory") and kwargs.keys() - {"pin_memory"} <= _PLAIN_OPTIONS
    sizes = all(type(n) is int and n >= 0 for n in size)
    if not (plain and sizes and dtype.is_floating_point) or target.type == "meta":
        return interpret(func, args, kwargs)
    num_bytes = math.prod(size) * dtype.itemsize
    if num_bytes > _MAX_BYTES:
        return interpret(func, args, kwargs)  # which raises what torch raises
    storage = Storage(num_bytes, target, func, _origin.here(2))
    return new_fake(intern(size, contiguous_stride(size), 0, dtype, target), storage)


_MAX_BYTES = 1 << 62


@handles(aten.as_strided.default, aten.as_strided_.default)
def as_strided(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Views by size and stride: the meta kernel would grow the storage instead of refusing."""
    fake, size, stride = args[:3]
    if isinstance(fake, FakeTensor):
        offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
        start = fake._fake_meta.offset if offset is None else offset
        itemsize, available = fake.dtype.itemsize, fake._fake_storage.num_bytes
        needed = bytes_spanned(size, stride, start, itemsize)
        if needed > available:
            raise RuntimeError(
                f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {start}, "
                f"and itemsize {itemsize} requiring a storage size of {needed} are out of bounds "
                f"for storage of size {available}"
            )
    return interpret(func, args, kwargs)


@handles(aten._is_any_true.default)
def is_any_true(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Asked by torch's own checks for a bad value (anomaly detection): unknown ones are good."""
    return _settled(func, args, kwargs, answer=False)


@handles(aten._is_all_true.default)
def is_all_true(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Asked by torch's own checks that values are in range (distributions): unknown ones are."""
    return _settled(func, args, kwargs, answer=True)


def _settled(func: Any, args: Args, kwargs: Kwargs, *, answer: bool) -> Any:
    if is_known(args[0]):
        return interpret(func, args, kwargs)
    settled = torch.full((), answer, device="cpu")
    return fake_twin(settled, device=args[0].device, known=True)


@handles(aten._nested_tensor_from_mask_left_aligned.default)
def is_left_aligned(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """``nn.TransformerEncoder`` asks whether it may use nested tensors: there are no fake ones."""
    return False


@handles(
    aten.set_.source_Storage,
    aten.set_.source_Storage_storage_offset,
    aten.set_.source_Tensor,
    aten.set_.source_Tensor_storage_offset,
    aten.set_.default,
)
def set_storage(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``set_``: the fake looks at another storage from now on. torch.load and safetensors give
    real storages, which become fake ones here, with their value where small.
    """
    fake, source = args[0], (args[1] if len(args) > 1 else None)
    if not isinstance(fake, FakeTensor):
        if isinstance(source, FakeTensor):
            raise RealTensorWriteError("a real tensor cannot look at the storage of a fake (set_)")
        return func(*args, **kwargs)
    storage = _storage_to_set(fake, source)
    mark = fake._fake_meta.mark
    if mark and storage.recorded is None:
        storage.recorded = _recorded_of(source, storage, mark)
    size, stride, offset = _place_in(fake, source, args[2:], storage)
    record = intern(size, stride, offset, fake.dtype, storage.device)
    become(fake, record, storage)
    return fake


def _storage_to_set(fake: FakeTensor, source: Any) -> Storage:
    if source is None:
        return Storage(0, fake.device)
    if isinstance(source, FakeTensor):
        return source._fake_storage
    if isinstance(source, torch.Tensor):
        return fake_twin(source, known=True)._fake_storage
    storage = storage_of(source, source.device if source.device.type != "meta" else fake.device)
    state = _state.current()
    loading = state is not None and state.loading
    if storage.value is None and source.device.type == "cpu" and not loading:
        if not isinstance(source, FakeUntypedStorage):
            _values.remember(storage, source, fake.dtype)
    if storage.place is None:
        storage.place = _origin.here(3)
    return storage


def _recorded_of(source: Any, storage: Storage, mark: int) -> _graph.Deferred:
    """What a deferred fake finds in a storage that was not: real memory, or nothing."""
    untyped = source.untyped_storage() if isinstance(source, torch.Tensor) else source
    if source is None or isinstance(untyped, FakeUntypedStorage) or untyped.device.type == "meta":
        return _graph.Deferred(
            _graph.Contents(_graph.Cell(storage.num_bytes, storage.device)), mark
        )
    return _graph.adopted(untyped, mark)


def _place_in(fake: FakeTensor, source: Any, place: Args, storage: Storage) -> Any:
    """Size, stride and offset that ``set_`` gives: those named, else the source's own."""
    if place:
        offset, size = place[0], tuple(place[1])
        stride = tuple(place[2]) if len(place) > 2 and place[2] else contiguous_stride(size)
        return size, stride, offset
    if isinstance(source, torch.Tensor):
        return tuple(source.shape), source.stride(), int(source.storage_offset())
    return (storage.num_bytes // fake.dtype.itemsize,), (1,), 0


@handles(aten._linalg_check_errors.default)
def check_errors(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Whether a factorisation succeeded: of values that do not exist, it did."""


_DEGENERATE = frozenset({aten.le.Scalar, aten.lt.Scalar, aten.eq.Scalar})


@handles(aten.equal.default)
def equal(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``torch.equal``. C++ asks ``equal(condition, ones)``, with the ones made on the spot
    (``is_scalar_tensor_true``, in ``torch.cov``). Of an unknown one,
    a check passes, and a degenerate case is not there.
    """
    condition, ones = args
    if isinstance(condition, FakeTensor) and isinstance(ones, FakeTensor):
        asked, made = condition._fake_storage, ones._fake_storage
        if asked.value is None and made.op is aten.new_ones.default and condition.dim() == 0:
            return asked.op not in _DEGENERATE
    return interpret(func, args, kwargs)


@handles(aten.allclose.default)
def allclose(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``torch.allclose``: where torch itself asks, of unknown values, the settled answer."""
    if not all(is_known(t) for t in args[:2]):
        answer = _origin.asked_by(_private.settled_questions())
        if answer is not None:
            return bool(answer)
    return interpret(func, args, kwargs)


@handles(aten.masked_select.default)
def masked_select(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result's length is the mask's doing; the values selected need not be known."""
    source, mask = args
    if is_known(source) or not is_known(mask):
        return interpret(func, args, kwargs)
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    length = int(value_argument(mask).expand(shape).sum())
    return interpret(aten.new_empty.default, (source, [length]), {})


@handles(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Indexing: the result's shape depends on values where an index is a mask, and only then.
    A known mask is its positions.
    """
    source, indices = args
    _check_index_devices(source, indices)
    if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return interpret(func, args, kwargs, needs_values=False)
    positions: list[Any] = []
    for i in indices:
        is_mask = i is not None and i.dtype in (torch.bool, torch.uint8)
        if is_mask:
            _check_mask_fits(i, source, len(positions))
        if is_mask and not is_known(i):
            raise _values.unknown(i, "indexing with a mask")
        positions.extend(_positions(i) if is_mask else [i])
    return interpret(func, (source, positions), kwargs, needs_values=False)


def _check_mask_fits(mask: Any, source: Any, dim: int) -> None:
    """A mask covers whole dims from `dim` on; its positions alone would not show that."""
    for i, (own, wanted) in enumerate(zip(mask.shape, source.shape[dim:], strict=False)):
        if own != wanted:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {i} does not match the shape "
                f"of the indexed tensor {list(source.shape)} at index {dim + i}"
            )


def _check_index_devices(source: Any, indices: Any) -> None:
    for i in indices:
        if i is not None and i.device.type != "cpu" and i.device != source.device:
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({source.device})"
            )


def _positions(mask: Any) -> list[FakeTensor]:
    """Where a known mask is set, as one index tensor per dim."""
    found = value_argument(mask).nonzero(as_tuple=True)
    return [fake_twin(p, device=mask.device, known=True) for p in found]


@handles(aten.is_pinned.default)
def is_pinned(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """No memory, so none of it is pinned."""
    return False


@handles(aten._pin_memory.default, aten.pin_memory.default)
def pin_memory(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A copy in pinned memory: the metadata of a clone."""
    return interpret(aten.clone.default, args[:1], {})


@handles(
    aten.quantize_per_tensor.default,
    aten.quantize_per_tensor.tensor_qparams,
    aten.quantize_per_tensor_dynamic.default,
    aten.quantize_per_channel.default,
    aten._empty_affine_quantized.default,
)
def refuse_quantized(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Torch's quantized dtypes carry a scale, and their meta kernels forget the dtype."""
    raise UnsupportedOpError(f"{func} gives a quantized tensor; fakes have no quantized dtypes")


@handles(aten.record_stream.default)
def record_stream(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Tells the CUDA allocator about a stream; there is neither."""


handles(*_collectives.operators())(_collectives.collective)
handles(*_collectives.waits())(_collectives.wait)
