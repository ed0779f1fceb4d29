"""Real storages, and real tensors on them, from records of metadata.

Input: sizes in bytes, devices, :class:`Metadata`. Output: new storages; real tensors that view a
storage with the metadata of a record. Invariant: no function here writes values to a storage.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache, lru_cache
from typing import Any

import torch

from torchfake._core.metadata import Metadata, is_dense
from torchfake._torch import backends, subclass, zero_tensors

_CPU = torch.device("cpu")


def bytes_at(address: int, num_bytes: int) -> bytes:
    """The bytes from an address on. Near the recursion limit, ``ctypes.string_at``, a function in
    Python, raises ArgumentError; this does not.
    """
    return (ctypes.c_char * num_bytes).from_address(address).raw


def is_available(device: torch.device) -> bool:
    """Whether this machine has `device`."""
    if device.type in ("cpu", "meta"):
        return True
    if device.type != "cuda":
        return backends.has_device_type(device.type)
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def replay_device(device: torch.device) -> torch.device:
    """The device on which operations recorded on `device` are replayed; the CPU if it is absent."""
    return device if is_available(device) else _CPU


@cache
def pins_memory() -> bool:
    """Whether this machine has a driver that pins memory."""
    try:
        return torch.empty(1, device="cpu", pin_memory=True).is_pinned()
    except RuntimeError:
        return False


def allocate_storage(num_bytes: int, device: torch.device) -> torch.UntypedStorage:
    """An uninitialized storage on the replay device of `device`."""
    return torch.UntypedStorage(num_bytes, device=replay_device(device))


def view_of(storage: torch.UntypedStorage, record: Metadata) -> torch.Tensor:
    """A real tensor with the metadata of `record` on `storage`; a zero tensor has no memory."""
    if record.zero:
        place = record.size, record.stride, record.offset, record.dtype, storage.device
        return zero_tensors.zero_tensor(*place)
    view = torch.empty(0, dtype=record.dtype, device=storage.device)
    view.set_(storage, record.offset, record.size, record.stride)
    if record.conj or record.neg:
        subclass.set_conj_and_neg(view, record.conj, record.neg)
    return view


def number_of_empty_memory(dtype: torch.dtype) -> Any:
    """The number with which torch fills empty memory under ``torch.use_deterministic_algorithms``:
    NaN, or the largest integer (aten/src/ATen/native/TensorFactories.h, fill_empty_deterministic_).
    """
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a real tensor's elements, in order, on the CPU: uint8[n]."""
    return bytes_of(tensor.detach().resolve_conj().resolve_neg().cpu())


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a real tensor's elements, in order, on its device; its memory, if that is so."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    in_order = plain.as_strided((plain.numel(),), (1,))  # a dimension of 1 may have any stride
    return in_order.view(torch.uint8)


def flat_view(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    """The whole storage as a one-dimensional tensor of `dtype`."""
    view = torch.empty(0, dtype=dtype, device=storage.device)
    return view.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))


@lru_cache(maxsize=4096)
def covers(record: Metadata, num_bytes: int) -> bool:
    """Whether a tensor contains each byte of a storage of this size exactly once."""
    return record.offset == 0 and record.num_bytes == num_bytes and is_dense(record)
