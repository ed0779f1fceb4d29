"""Known values: small tensors computed from host data keep their value, which a program may read.

Input: small tensors that come from host data alone. Output: their bytes, held by the storage, so
that every view of the storage reads and writes one value. Invariant: a value belongs to one storage
alone (the user's memory is copied, never shared); a storage loses its value as soon as an unknown
value is written to any part of the storage.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from torchfake._core import memory
from torchfake._core.storage import NO_BYTES, AssumedFill, Storage
from torchfake._replay import first_use as replay
from torchfake._torch import autograd, dispatcher, subclass
from torchfake._unknown_values import answerers
from torchfake.errors import UnknownValueError

MAX_KNOWN_BYTES = 64 * 1024
"""The largest storage of floats that keeps its value: rotary tables, drop-path rates, scales."""

MAX_KNOWN_BYTES_OF_INTEGERS = 1024 * 1024
"""The largest storage of integers or booleans that keeps its value: 16 x 8,192 positions, masks."""


def keeps_value(num_bytes: int, dtype: torch.dtype) -> bool:
    """Whether a storage of `num_bytes` seen as `dtype` is small enough to keep its value."""
    is_inexact = dtype.is_floating_point or dtype.is_complex
    return num_bytes <= (MAX_KNOWN_BYTES if is_inexact else MAX_KNOWN_BYTES_OF_INTEGERS)


def is_known(fake: Any) -> bool:
    """Whether the value of a plain fake is known. That of a tensor without elements always is."""
    return fake._fake_storage.is_known or 0 in fake._fake_meta.size


def is_unknown(fake: Any) -> bool:
    """Whether nothing is known of the value of a plain fake, or a bound alone."""
    return fake._fake_storage.is_unknown and 0 not in fake._fake_meta.size


def value_of(fake: Any) -> torch.Tensor:
    """The value of a fake, known or assumed, to be read only."""
    record, storage = fake._fake_meta, fake._fake_storage
    has_bytes = storage.is_known or 0 not in record.size  # that ``out=`` may reach, enlarged
    return memory.view_of(storage.known_bytes() if has_bytes else NO_BYTES.bytes(), record)


_NOTHING: AbstractContextManager[None] = nullcontext()


def without_fake_mode() -> AbstractContextManager[None]:
    """Context: factories make real tensors although a mode is on, or a transform of ``torch.func``
    runs. Inside a dispatch they do anyway: a context that changes something takes longer than to
    make the tensor.
    """
    if dispatcher.transforms_see_operators():
        return dispatcher.without_transforms()
    is_needed = dispatcher.current_fake_mode() is not None
    return dispatcher.in_fake_slot(None) if is_needed else _NOTHING


def store_value(storage: Storage, value: torch.UntypedStorage, dtype: torch.dtype) -> None:
    """Give `storage` a copy of `value`, if it is small enough."""
    if keeps_value(storage.num_bytes, dtype):
        with without_fake_mode():
            storage.value = value.clone()


def store_tensor_value(storage: Storage, real: torch.Tensor) -> None:
    """Give `storage` the value of the memory that `real` views. Faster if `real` is contiguous and
    covers all of it.
    """
    num_bytes, dtype = storage.num_bytes, real.dtype
    covers = real.nbytes == num_bytes and real.is_contiguous()
    if not covers or real.is_conj() or real.is_neg():
        store_value(storage, real.untyped_storage(), dtype)
    elif keeps_value(num_bytes, dtype):
        with without_fake_mode():
            storage.value = real.detach().clone().untyped_storage()


def read_value(fake: Any, requested_by: str) -> torch.Tensor:
    """The real value of `fake`.

    Raises:
        UnknownValueError: naming `requested_by`, the tensor, and the line that made it.
    """
    storage, record = getattr(fake, "_fake_storage", None), getattr(fake, "_fake_meta", None)
    if storage is None or record is None:  # another thread has materialized it since the call
        return fake  # type: ignore[no-any-return]
    if storage.deferred is not None:
        return replay.value_of(storage.deferred, record)
    if is_unknown(fake):
        answered = answerers.value_of(fake, requested_by)
        if answered is None:
            raise unknown_value_error(fake, requested_by)
        return answered
    if type(storage.value) is AssumedFill and fake.numel():
        answerers.note(fake, requested_by, storage.value.number, "finiteness")
    with without_fake_mode():
        return value_of(fake)


def memory_of(fake: Any, requested_by: str) -> torch.Tensor:
    """A real tensor whose memory other code may read and write: the memory of a deferred tensor,
    which is materialized, or a copy of the value of a plain fake.

    Raises:
        UnknownValueError: as :func:`read_value`.
    """
    storage = getattr(fake, "_fake_storage", None)
    if storage is not None and storage.deferred is None:
        return _copied(read_value(fake, requested_by))
    if storage is not None:
        replay.make_real(storage.deferred)
    return read_value(fake, requested_by)


def _copied(value: torch.Tensor) -> torch.Tensor:
    """A copy that is as lazy as the value: what exports memory refuses a conjugate view, and a zero
    tensor, which has none.
    """
    if value._is_zerotensor():
        return value
    copy = value.clone()
    if value.is_conj():
        copy.conj_physical_()
    if value.is_neg():
        copy.neg_()
    subclass.set_conj_and_neg(copy, value.is_conj(), value.is_neg())
    return copy


# Methods of a fake that give values to Python or to other libraries. They are functions, since a
# second base class makes each look-up of a method slower.


def numpy(fake: Any, *, force: bool = False) -> Any:
    if fake.device.type not in ("cpu", "meta") and not force:
        raise TypeError(
            f"can't convert {fake.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    if fake.requires_grad and not force:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    with without_fake_mode():
        return memory_of(fake, "numpy()").numpy(force=force)


def tolist(fake: Any) -> Any:
    with without_fake_mode():  # also resolves a lazy conjugate
        return read_value(fake, "tolist()").tolist()


def check_export(fake: Any) -> None:
    """Raise what eager raises for a tensor that DLPack cannot describe."""
    if fake.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if fake.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")


def dlpack(fake: Any, **kwargs: Any) -> Any:
    check_export(fake)
    if fake.device.type not in ("cpu", "meta"):
        raise BufferError(
            f"this tensor is fake: there is no memory on {fake.device} that another library could "
            "read. Pass tensor.cpu(), if its values are known"
        )
    with without_fake_mode():
        return memory_of(fake, "__dlpack__()").__dlpack__(**kwargs)


def dlpack_device(fake: Any) -> Any:
    device = fake.device
    if device.type == "cuda":
        return torch.utils.dlpack.DLDeviceType.kDLCUDA, device.index
    return read_value(fake, "__dlpack_device__()").__dlpack_device__()


def formatted(fake: Any, spec: str) -> str:
    if fake.dim() == 0 and spec:
        return format(read_value(fake, "format()").item(), spec)
    return object.__format__(fake, spec)


def apply_(fake: Any, function: Any) -> Any:
    """Overridden because C++ would not call the function for any element. As in C++, elements that
    share memory are each written, and the write is not counted.
    """
    subclass.builtin_methods.apply_(fake, function)  # raises what torch raises
    storage = fake._fake_storage
    if storage.deferred is None and not is_known(fake):
        return fake
    version = autograd.version_of(fake)
    with torch.inference_mode(version is None):
        whole = fake.as_strided((storage.num_bytes // fake.element_size(),), (1,), 0)
        with without_fake_mode():
            written = read_value(whole, "apply_()").untyped_storage().clone()
            values = memory.view_of(written, whole._fake_meta)
            memory.view_of(written, fake._fake_meta).apply_(function)
        whole.copy_(values)
    if version is not None:
        autograd.set_version(fake, version)
    return fake


_NUMBERS = frozenset({bool, int, float, complex})


def with_real_items(data: Any) -> Any:
    """Nested lists of numbers with real tensors in place of fakes, whose values C++ would read
    without a dispatch. For a fake with several elements, which C++ refuses, no value is read.

    Raises:
        UnknownValueError: if the value of a fake with one element is not known.
    """
    if hasattr(data, "_fake_storage"):
        value = data.item() if data.numel() == 1 else 0
        with without_fake_mode():
            return torch.tensor(value, dtype=data.dtype, device="cpu").expand(data.shape)
    if not isinstance(data, (list, tuple)) or _NUMBERS.issuperset(map(type, data)):
        return data
    items = [with_real_items(item) for item in data]
    is_changed = any(new is not old for new, old in zip(items, data, strict=True))
    return items if is_changed else data


def unknown_value_error(fake: Any, requested_by: str) -> UnknownValueError:
    """The error for reading `fake`, ready to be raised."""
    remedy = _MASKED if any(name in requested_by for name in _BY_MASK) else _NUMBER
    return UnknownValueError(
        f"{requested_by} needs the value of a fake tensor, and it is not known: "
        f"{describe(fake)}. Fakes keep the values of small tensors computed from host data only. "
        f"{remedy}, skip the branch for fakes with torchfake.is_fake(tensor), or have typical "
        'values assumed: torchfake.fake_mode(answer="typical")'
    )


_BY_MASK = ("mask", "nonzero")
_MASKED = (
    "Keep the shape, with x.masked_fill(~mask, 0) or torch.where(mask, x, 0) in place of x[mask]"
)
_NUMBER = "Use a Python number or a small torch.tensor(...) here"


def describe(fake: Any) -> str:
    """Describe a fake for an error message: metadata, operator, and line in the user's code."""
    meta, storage = fake._fake_meta, fake._fake_storage
    text = f"{str(meta.dtype).removeprefix('torch.')}{list(meta.size)} on {meta.device}"
    if storage.op is not None:
        text += f", made by {storage.op}"
    if storage.source_location is not None:
        text += f" at {storage.source_location}"
    return text
