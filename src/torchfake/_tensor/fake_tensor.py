"""The fake tensor: a wrapper subclass that consists of a metadata record and a storage.

Input: a :class:`Metadata` and a :class:`Storage`. Output: a ``torch.Tensor`` that reports the
fake's device to Python and a ``meta`` device to C++. Invariant: the wrapper's C++ metadata, its
``_fake_meta`` and its ``_fake_storage`` agree, always; :func:`rebind` is the only way to change
them.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

import torch

from torchfake._core import devices
from torchfake._core.metadata import (
    DEFERRED_AS_META,
    PLAIN,
    Metadata,
    metadata_of,
    with_mark,
)
from torchfake._core.storage import PinnedMemory, Storage
from torchfake._graph import deferred_storage
from torchfake._tensor import gradient_devices, known_values, method_arguments, torch_function
from torchfake._tensor.method_arguments import (
    encode_target,
    is_non_blocking,
    legacy_new,
    of_device_types,
    target_of_type,
    type_name,
)
from torchfake._torch import autograd, dispatch_keys, dispatcher, subclass, zero_tensors

REAL_COUNTERPART = "_real_counterpart"
"""The attribute of a fake that holds the real tensor which its materialized views are views of."""

OWN_ATTRIBUTES = frozenset({"_fake_meta", "_fake_storage", REAL_COUNTERPART})
_Super = subclass.builtin_methods
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class FakeTensor(torch.Tensor):
    """A tensor with a device, a dtype, a shape and strides, and no data.

    Created by factory functions inside :func:`torchfake.fake_mode` and by
    :func:`torchfake.fake_like`. The constructor is that of ``torch.Tensor``; the class of a fake
    parameter constructs parameters (``_tensor/classes``). There are no ``__slots__``, because
    ``torch.utils.swap_tensors`` needs a plain dict.
    """

    __module__ = "torch"  # by which einsum libraries choose whose functions compute
    _fake_meta: Metadata
    _fake_storage: Storage

    __torch_function__ = torch_function.override_switch

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replaced by :mod:`torchfake._dispatch`, which is above this file in the import order."""
        raise AssertionError(
            "torchfake's dispatcher is not loaded: import torchfake, not its parts"
        )

    __dict__ = subclass.dict_property(OWN_ATTRIBUTES)
    _fake_attributes = subclass.every_attribute  # including torchfake's own

    # Properties that differ from the wrapper's in C++.

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        record = self._fake_meta
        return record.device if record.mark != DEFERRED_AS_META else record.reported_device

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        if self._fake_meta.mark != DEFERRED_AS_META:
            return False
        caller = sys._getframe(1).f_code.co_filename
        return caller != torch.nn.init.__file__  # which leaves meta tensors uninitialized

    def get_device(self) -> int:
        index = self._fake_meta.reported_device.index
        return -1 if index is None else index

    @property
    def data(self) -> torch.Tensor:
        return _Super.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, source: torch.Tensor) -> None:
        mark = self._fake_meta.mark
        fake = source if isinstance(source, FakeTensor) else _fake_of_real(source, mark)
        with subclass.no_subclass_functions():  # a lazy parameter's own function raises
            is_inference = source.is_inference()
        rebind(self, fake._fake_meta, fake._fake_storage, is_inference=is_inference)

    def _set_grad(self, value: torch.Tensor | None) -> None:
        mark = self._fake_meta.mark
        if mark and value is not None and type(value) in _PLAIN_TENSORS and not value.is_meta:
            value = _fake_of_real(value, mark)  # C++ compares devices, and sees a fake's carrier
        gradient_devices.set_grad(_Super.grad.__set__, self, value)  # type: ignore[union-attr]

    def register_hook(self, hook: Any) -> Any:
        return super().register_hook(gradient_devices.checked_hook(hook))  # type: ignore[no-untyped-call]

    grad = property(_Super.grad.__get__, _set_grad, _Super.grad.__delete__)  # type: ignore[union-attr]

    @property
    def _wrapped_number(self) -> bool | int | float | complex:
        """The number that torch's bindings hand to Python in place of a zero tensor that C++ made
        of a number's tangent. torch reads the attribute of no other fake.
        """
        return zero_tensors.zero_number(self.dtype)

    def untyped_storage(self) -> Any:
        return self._fake_storage.untyped

    def _typed_storage(self) -> Any:
        return self._fake_storage.untyped.typed(self.dtype)

    def data_ptr(self) -> Any:
        """Identifies the storage; a real address only if there is memory (``_tensor/address``)."""
        if self.numel() == 0:
            return 0
        meta = self._fake_meta
        return self._fake_storage.untyped.data_ptr() + meta.offset * meta.dtype.itemsize

    def is_shared(self) -> bool:
        return bool(self._fake_storage.untyped.is_shared())

    def share_memory_(self) -> FakeTensor:
        self._fake_storage.untyped.share_memory_()
        return self

    def record_stream(self, stream: Any) -> None:
        """C++ does not accept a fake stream; the memory tracker is notified instead."""
        if issubclass(builtins.type(stream), torch.Stream):
            _Super.record_stream(self, stream)
        elif self.device.type == "cpu":
            raise NotImplementedError(
                "aten::record_stream is for tensors on an accelerator, and this one is on the CPU"
            )
        tracker = dispatcher.current_fake_mode()
        if hasattr(tracker, "record_stream"):
            tracker.record_stream(self._fake_storage, stream)

    # Conversions: C++ gets the carrier device, since it compares that with the wrapper's device.

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        args, kwargs = encode_target(args, kwargs)
        if self._fake_meta.mark == DEFERRED_AS_META:
            kwargs = method_arguments.leaving_meta(kwargs, *args[:1])
        made: Any = _Super.to(self, *args, **kwargs)
        if self.is_cuda and made.device.type == "cpu" and is_non_blocking(args, kwargs):
            made._fake_storage.pinned = PinnedMemory()  # where the copy need not wait
        return made  # type: ignore[no-any-return]

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        return self.to(devices.CPU, memory_format=memory_format)

    def type(self, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            return type_name(self.dtype, self._fake_meta.reported_device.type)
        return self.to(*target_of_type(dtype, self.device.type))

    def new(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        return legacy_new(self, args, kwargs)

    def new_tensor(  # type: ignore[override]
        self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> torch.Tensor:
        dtype = self.dtype if dtype is None else dtype
        if isinstance(data, torch.Tensor):
            host = torch.tensor(data, dtype=dtype, device=data.device)
            is_fake = isinstance(host, FakeTensor)
            fake: torch.Tensor = host if is_fake else fake_copy(host, known=True)
        else:
            is_fake, data = False, known_values.with_real_items(data)
            with known_values.without_fake_mode():
                fake = fake_copy(torch.tensor(data, dtype=dtype, device="cpu"), known=True)
        if self._fake_meta.mark and not is_fake:
            made = self.new_empty(fake.shape, dtype=dtype).copy_(fake)
            return subclass.require_grad(made, requires_grad)
        target = self.device if device is None else devices.resolve(device)
        fake = fake if target == devices.CPU else fake.to(target)
        return fake.requires_grad_() if requires_grad else fake

    __getitem__ = method_arguments.get_item
    __setitem__ = method_arguments.set_item
    __len__ = method_arguments.length
    numpy = known_values.numpy
    tolist = known_values.tolist
    apply_ = known_values.apply_  # type: ignore[assignment]
    __dlpack__ = known_values.dlpack
    __dlpack_device__ = known_values.dlpack_device
    __format__ = known_values.formatted

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return fake_repr(self)


for _name, _attribute in of_device_types().items():
    setattr(FakeTensor, _name, _attribute)
torch_function.show_calls_to_modes(FakeTensor)


def new_fake(
    meta: Metadata,
    storage: Storage,
    cls: type[FakeTensor] = FakeTensor,
    *,
    requires_grad: bool = False,
) -> FakeTensor:
    """A fake with metadata `meta` that views `storage`, outside the autograd graph."""
    meta = _with_mark_of(meta, storage)
    arguments = wrapper_arguments(meta)[1:]
    if requires_grad:
        arguments = subclass.with_requires_grad(arguments)
    fake: FakeTensor = subclass.make_wrapper(cls, *arguments)
    if meta.conj or meta.neg:
        subclass.set_conj_and_neg(fake, meta.conj, meta.neg)
    fake._fake_attributes = {"_fake_meta": meta, "_fake_storage": storage}
    return fake


def with_version_counter(inference_fake: Any) -> FakeTensor:
    """``detach()`` of an inference tensor outside of inference mode: the result may be written."""
    with torch.inference_mode(False):
        counted = new_fake(inference_fake._fake_meta, inference_fake._fake_storage)
    subclass.set_data_of_other_kind(counted, inference_fake)
    return counted


def _fake_of_real(real: torch.Tensor, mark: int) -> FakeTensor:
    """A deferred fake on the memory of a real tensor; with mark PLAIN, a fake with its value."""
    fake = fake_copy(real, known=not mark)
    if mark:
        untyped = real.untyped_storage()
        fake._fake_storage.deferred = deferred_storage.deferred_from_real(untyped, mark)
        return new_fake(fake._fake_meta, fake._fake_storage)
    return fake


def is_deferred_fake(tensor: Any) -> bool:
    """Whether `tensor` is a fake of a storage whose operations are recorded."""
    return isinstance(tensor, FakeTensor) and tensor._fake_storage.deferred is not None


def _with_mark_of(meta: Metadata, storage: Storage) -> Metadata:
    """`meta` with the mark of the storage: a storage is deferred or not, whatever views it."""
    mark = PLAIN if storage.deferred is None else storage.deferred.mark
    return meta if meta.mark == mark else with_mark(meta, mark)


def wrapper_arguments(meta: Metadata) -> tuple[Any, ...]:
    """The arguments of ``make_wrapper`` for a fake of `meta`, built once for each record.

    All are positional, in one tuple, with None for torch's defaults: a keyword costs as much as a
    quarter of the call, and so do strides and offset.
    """
    if meta.wrapper_args is None:
        offset = meta.offset or None
        is_contiguous = offset is None and meta.is_contiguous
        stride = None if is_contiguous else meta.stride
        geometry = (meta.size, stride, offset, None, meta.dtype, meta.layout, meta.carrier)
        keys = dispatch_keys.WRAPPER_KEY.keys
        if meta.mark == PLAIN and meta.device.type == "cuda":
            keys = keys | dispatch_keys.CUDA_WRAPPER_KEY.keys
        if meta.zero:
            keys = keys | zero_tensors.wrapper_keys()
        defaults = subclass.wrapper_defaults(keys)
        meta.wrapper_args = (FakeTensor, *geometry, *defaults)
    return meta.wrapper_args


def rebind(
    fake: FakeTensor, meta: Metadata, storage: Storage, *, is_inference: bool | None = None
) -> None:
    """Give `fake` other metadata and another storage in place, and make it an inference tensor or a
    normal one. With ``is_inference=None``, that does not change.
    """
    meta = _with_mark_of(meta, storage)
    with subclass.no_subclass_functions():  # a lazy parameter's own function raises
        old, is_now = fake._fake_meta, fake.is_inference()
    wanted = is_now if is_inference is None else is_inference
    if meta is not old or wanted != is_now:
        with torch.inference_mode(wanted):
            source = new_fake(meta, storage)
        is_same_kind = wanted == is_now and meta.conj == old.conj and meta.neg == old.neg
        set_data = subclass.set_data if is_same_kind else subclass.set_data_of_other_kind
        set_data(fake, source)
    fake._fake_meta = meta
    fake._fake_storage = storage


def fake_copy(
    real: torch.Tensor, *, device: torch.device | None = None, known: bool = False
) -> FakeTensor:
    """A fake with the metadata of `real`, on `device` if given; with its value too if `known`."""
    target = real.device if device is None else device
    target = devices.CPU if target.type == "meta" else target
    storage = Storage(real.untyped_storage().nbytes(), target)
    if known and real.device.type == "cpu":
        known_values.store_tensor_value(storage, real)
    return new_fake(metadata_of(real, target), storage)


def user_attributes(fake: torch.Tensor) -> dict[str, Any]:
    """The attributes that the program has set on a fake, without torchfake's own."""
    attributes = dict(subclass.all_attributes(fake))
    for name in OWN_ATTRIBUTES:
        attributes.pop(name, None)
    return attributes


def fake_repr(fake: Any) -> str:
    """``tensor(..., size=(10,), fake=True)``, in the order of torch's text of a meta tensor.

    A parameter gets torch's ``Parameter containing:`` line; properties at defaults are left out.
    """
    text = f"tensor({', '.join(_parts(fake))})"
    if getattr(fake, "_is_param", False):
        return f"Parameter containing:\n{text}"
    return text


def _parts(fake: Any) -> list[str]:
    meta = fake._fake_meta
    parts = ["..."]
    if meta.reported_device.type != "cpu":
        parts.append(f"device='{meta.reported_device}'")
    parts.append(f"size={tuple(meta.size)}")
    if meta.dtype != torch.get_default_dtype():
        parts.append(f"dtype={meta.dtype}")
    if autograd.is_forbidden_view(fake):
        parts.append("grad_fn=<Invalid>")
    elif fake.grad_fn is not None:
        parts.append(f"grad_fn=<{fake.grad_fn.name()}>")
    elif fake.requires_grad:
        parts.append("requires_grad=True")
    return [*parts, "fake=True"]
