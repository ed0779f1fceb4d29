"""The fake tensor: a wrapper subclass that is its metadata record and its storage.

Enters: a :class:`Metadata` and a :class:`Storage`. Leaves: a ``torch.Tensor`` that reports the
fake's device to Python and a ``meta`` device to C++. Invariant: the wrapper's C++ metadata, its
``_fake_meta`` and its place in ``_fake_storage`` say the same, always; :func:`become` is the only
way to change them.
"""

from __future__ import annotations

import copy
import sys
from functools import cache
from typing import Any

import torch

from torchfake import _device, _function, _graph, _private, _repr, _values
from torchfake._device import encode
from torchfake._metadata import (
    DEFERRED_AS_META,
    PLAIN,
    FakeUntypedStorage,
    Ints,
    Metadata,
    Storage,
    intern,
    load_storage,
    marked,
    metadata_of,
)
from torchfake.errors import RecordError

_OWN_ATTRIBUTES = frozenset({"_fake_meta", "_fake_storage"})
_Super = _private.builtin_methods


class FakeTensor(torch.Tensor):
    """A tensor with a device, a dtype, a shape and strides, and no data.

    Made by factories inside :func:`torchfake.fake_mode` and by :func:`torchfake.fake_like`, never
    by its constructor. It has no ``__slots__``: ``torch.utils.swap_tensors`` needs a plain dict.
    """

    _fake_meta: Metadata
    _fake_storage: Storage

    __torch_function__ = _function.switch

    def __new__(cls, *args: Any, **kwargs: Any) -> FakeTensor:
        raise TypeError(
            "FakeTensor is not constructed directly: make tensors inside torchfake.fake_mode(), "
            "or call torchfake.fake_like(real)"
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replaced by :mod:`torchfake._dispatch`: a tensor is low in the import order and its
        operations are high. This is the one place where a call goes up.
        """
        raise AssertionError(
            "torchfake's dispatcher is not loaded: import torchfake, not its parts"
        )

    # What differs from what C++ would say of the wrapper.

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        record = self._fake_meta
        return record.device if record.mark != DEFERRED_AS_META else record.shown

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self._fake_meta.shown.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return self._fake_meta.shown.type == "cpu"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        if self._fake_meta.mark != DEFERRED_AS_META:
            return False
        asking = sys._getframe(1).f_code.co_filename
        return asking != torch.nn.init.__file__  # which would leave meta tensors uninitialised

    def get_device(self) -> int:
        index = self._fake_meta.shown.index
        return -1 if index is None else index

    @property
    def data(self) -> torch.Tensor:
        return _Super.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, source: torch.Tensor) -> None:
        mark = self._fake_meta.mark
        twin = source if isinstance(source, FakeTensor) else fake_twin(source, known=not mark)
        if twin is not source and mark:
            twin._fake_storage.recorded = _graph.adopted(source.untyped_storage(), mark)
        become(self, twin._fake_meta, twin._fake_storage)

    def untyped_storage(self) -> FakeUntypedStorage:
        return self._fake_storage.untyped

    def data_ptr(self) -> int:
        if self.numel() == 0:
            return 0
        return (
            self._fake_storage.address() + self._fake_meta.offset * self._fake_meta.dtype.itemsize
        )

    def is_shared(self) -> bool:
        return False

    def share_memory_(self) -> FakeTensor:
        return self

    # Conversions: C++ must be told the carrier, or it would compare a carrier with a real device.

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        args, kwargs = _encode_target(args, kwargs)
        return _Super.to(self, *args, **kwargs)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        return _Super.to(self, _device.carrier(_device.CPU), memory_format=memory_format)

    def cuda(
        self,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        target = _device.resolve("cuda" if device is None else device)
        return _Super.to(self, _device.carrier(target), memory_format=memory_format)

    def type(self, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            return _type_name(self)
        if isinstance(dtype, torch.dtype):
            return self.to(dtype)
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
        device = "cuda" if name.startswith("torch.cuda.") else "cpu"
        return self.to(device, _dtype_of_type_name(name))

    def new(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        """The old constructor: of sizes, data, a tensor or a storage (collating workers do so)."""
        first = args[0] if args else torch.Size([0])
        if isinstance(first, (torch.UntypedStorage, torch.TypedStorage)):
            flat = self.new_empty(0)
            return flat.set_(getattr(first, "_untyped_storage", first))
        if isinstance(first, torch.Tensor):
            return first.detach()
        if isinstance(first, (list, tuple)) and not isinstance(first, torch.Size):
            return self.new_tensor(first, **kwargs)
        return self.new_empty(first if isinstance(first, torch.Size) else args, **kwargs)

    def new_tensor(  # type: ignore[override]
        self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> torch.Tensor:
        dtype = self.dtype if dtype is None else dtype
        if isinstance(data, torch.Tensor):
            host = torch.tensor(data, dtype=dtype)
        else:
            with _values.on_host():
                host = torch.tensor(data, dtype=dtype, device="cpu")
        if self._fake_meta.mark and not isinstance(host, FakeTensor):
            made = self.new_empty(host.shape, dtype=dtype).copy_(fake_twin(host, known=True))
            return made.requires_grad_(requires_grad)
        fake: torch.Tensor
        fake = host if isinstance(host, FakeTensor) else fake_twin(host, known=True)
        target = self.device if device is None else _device.resolve(device)
        fake = fake if target == _device.CPU else fake.to(target)
        return fake.requires_grad_() if requires_grad else fake

    # Reading values: only those known on the host.

    def numpy(self, *, force: bool = False) -> Any:
        if self.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
                "instead."
            )
        with _values.on_host():
            return _values.read(self, "numpy()").clone().numpy(force=force)

    def tolist(self) -> Any:
        with _values.on_host():  # a lazy conjugate is resolved on the way
            return _values.read(self, "tolist()").tolist()

    def __dlpack__(self, **kwargs: Any) -> Any:
        with _values.on_host():
            return _values.read(self, "__dlpack__()").clone().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return _values.read(self, "__dlpack_device__()").__dlpack_device__()

    def __format__(self, spec: str) -> str:
        if self.dim() == 0 and spec:
            return format(_values.read(self, "format()").item(), spec)
        return object.__format__(self, spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return _repr.fake_repr(self)

    # Copies.

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment. If you were attempting to deepcopy a module, this may be "
                "because of a torch.nn.utils.weight_norm usage, see "
                "https://github.com/pytorch/pytorch/pull/103001"
            )
        storage = memo.get(id(self._fake_storage))
        if storage is None:
            with _values.on_host():
                storage = memo[id(self._fake_storage)] = self._fake_storage.copy()
        twin = new_fake(self._fake_meta, storage, type(self))
        memo[id(self)] = twin
        twin.requires_grad_(self.requires_grad)
        for name, value in _user_attributes(self).items():
            twin.__dict__[name] = copy.deepcopy(value, memo)
        if self.grad is not None:
            twin.grad = copy.deepcopy(self.grad, memo)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        recorded: Any = self._fake_storage.recorded
        if recorded is not None and recorded.real is not None:
            return _values.read(self, "pickle").__reduce_ex__(protocol)
        if recorded is not None:
            raise RecordError(
                f"a deferred {_values.describe(self)}, cannot be pickled: its record would be "
                "lost. Materialize it first"
            )
        meta = self._fake_meta
        place = (meta.size, meta.stride, meta.offset, meta.dtype, str(meta.device))
        bits = (meta.conj, meta.neg)
        state = (*place, *bits, self.requires_grad, _user_attributes(self))
        return load_fake, (self._fake_storage, *state, getattr(type(self), "_fake_of", None))


def new_fake(meta: Metadata, storage: Storage, cls: type[FakeTensor] = FakeTensor) -> FakeTensor:
    """A fake of `meta` that looks at `storage`; not a leaf of anything, needs no grad."""
    meta = _as_its_storage(meta, storage)
    fake: FakeTensor = _private.make_wrapper(cls, *wrapper_arguments(meta)[1:])
    if meta.conj or meta.neg:
        _private.set_bits(fake, meta.conj, meta.neg)
    fake._fake_meta = meta
    fake._fake_storage = storage
    return fake


def is_deferred_fake(tensor: Any) -> bool:
    """Whether it is a fake of a storage whose operations are recorded."""
    return isinstance(tensor, FakeTensor) and tensor._fake_storage.recorded is not None


def _as_its_storage(meta: Metadata, storage: Storage) -> Metadata:
    """`meta` with the mark of the storage: it is the bytes that are deferred, or not."""
    mark = PLAIN if storage.recorded is None else storage.recorded.mark
    return meta if meta.mark == mark else marked(meta, mark)


def wrapper_arguments(meta: Metadata) -> tuple[Any, ...]:
    """What ``make_wrapper`` takes for a fake of `meta`; put together once for each record.

    All by position, in one tuple, with None for what torch would assume: a keyword costs as much
    as a quarter of the call, and so do strides and offset.
    """
    if meta.wrapper is None:
        offset = meta.offset or None
        in_order = offset is None and meta.is_in_order
        stride = None if in_order else meta.stride
        place = (meta.size, stride, offset, None, meta.dtype, meta.layout, meta.carrier)
        meta.wrapper = (FakeTensor, *place, *_private.wrapper_defaults(_private.OWN_KEY.keys))
    return meta.wrapper


def become(fake: FakeTensor, meta: Metadata, storage: Storage) -> None:
    """Change what `fake` is, in place: its C++ metadata, its record and its storage."""
    meta = _as_its_storage(meta, storage)
    if meta is not fake._fake_meta:
        _private.set_data(fake, new_fake(meta, storage))
    fake._fake_meta = meta
    fake._fake_storage = storage


def fake_twin(
    real: torch.Tensor, *, device: torch.device | None = None, known: bool = False
) -> FakeTensor:
    """A fake with the metadata of `real`, on `device` if given; its value too if `known`."""
    target = real.device if device is None else device
    target = _device.CPU if target.type == "meta" else target
    storage = Storage(real.untyped_storage().nbytes(), target)
    if known and real.device.type == "cpu":
        _values.remember_tensor(storage, real)
    return new_fake(metadata_of(real, target), storage)


def fake_class(cls: type) -> type[FakeTensor]:
    """The class of a fake that stands for a tensor of class `cls`.

    Plain tensors and parameters are `FakeTensor` (torch marks parameters with a flag); any other
    tensor subclass gets a class that is both, so ``isinstance`` and its attributes hold.
    """
    if issubclass(cls, FakeTensor):
        return cls
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return FakeTensor
    return _combined_class(cls)  # type: ignore[arg-type]


@cache
def _combined_class(cls: Any) -> type[FakeTensor]:
    lazy = hasattr(cls, "cls_to_become")  # UninitializedParameter turns into this when it is run
    namespace: dict[str, Any] = {"_fake_of": cls, "__reduce_ex__": FakeTensor.__reduce_ex__}
    namespace |= {"cls_to_become": FakeTensor} if lazy else {}
    combined: type[FakeTensor] = type(cls)(cls.__name__, (cls, FakeTensor), namespace)
    return combined


def load_fake(
    storage: Storage,
    size: Ints,
    stride: Ints,
    offset: int,
    dtype: torch.dtype,
    device: str,
    conj: bool,
    neg: bool,
    requires_grad: bool,
    attributes: dict[str, Any],
    stands_for: type | None = None,
) -> FakeTensor:
    """What a pickled fake calls to come back."""
    meta = intern(
        tuple(size), tuple(stride), offset, dtype, torch.device(device), conj=conj, neg=neg
    )
    cls = FakeTensor if stands_for is None else fake_class(stands_for)
    fake = new_fake(meta, storage, cls)
    with _private.no_subclass_functions():  # a lazy parameter's own would refuse
        fake.requires_grad_(requires_grad)
    fake.__dict__.update(attributes)
    return fake


torch.serialization.add_safe_globals([load_fake, load_storage])


def _user_attributes(fake: FakeTensor) -> dict[str, Any]:
    return {name: value for name, value in fake.__dict__.items() if name not in _OWN_ATTRIBUTES}


def _encode_target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The arguments of ``Tensor.to`` with devices as carriers, and real tensors taken apart."""
    if args and isinstance(args[0], torch.Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    if args and isinstance(args[0], (str, int, torch.device)) and not isinstance(args[0], bool):
        args = (encode(args[0]), *args[1:])
    other = kwargs.get("other")
    if other is not None:
        kwargs = {**kwargs, "device": other.device, "dtype": other.dtype}
        del kwargs["other"]
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": encode(kwargs["device"])}
    return args, kwargs


def _type_name(fake: FakeTensor) -> str:
    prefix = "torch.cuda." if fake.is_cuda else "torch."
    return prefix + _TYPE_NAMES[fake.dtype]


_TYPE_NAMES = {
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.complex64: "ComplexFloatTensor",
    torch.complex128: "ComplexDoubleTensor",
    torch.uint8: "ByteTensor",
    torch.int8: "CharTensor",
    torch.int16: "ShortTensor",
    torch.int32: "IntTensor",
    torch.int64: "LongTensor",
    torch.bool: "BoolTensor",
}


def _dtype_of_type_name(name: str) -> torch.dtype:
    for dtype, type_name in _TYPE_NAMES.items():
        if name.endswith("." + type_name):
            return dtype
    raise ValueError(f"invalid type: {name!r}")
