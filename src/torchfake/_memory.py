"""Real memory for what was recorded.

Enters: sizes, devices, metadata records. Leaves: real storages, and real tensors on them. Invariant:
what is handed out is new.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import torch

from torchfake import _private
from torchfake._metadata import Metadata

_CPU = torch.device("cpu")
_HUGE_PAGE = 1 << 21
_MADV_HUGEPAGE = 14  # asm-generic/mman-common.h


def is_there(device: torch.device) -> bool:
    """Whether this machine has `device`; what was recorded on another is replayed on the CPU."""
    if device.type != "cuda":
        return True
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def real_device(device: torch.device) -> torch.device:
    """Where what was recorded on `device` is replayed."""
    return device if is_there(device) else _CPU


def new_storage(num_bytes: int, device: torch.device) -> torch.UntypedStorage:
    """Memory that nobody has written, on `device` or what takes its place."""
    storage = torch.UntypedStorage(num_bytes, device=real_device(device))
    if storage.device.type == "cpu" and num_bytes >= 2 * _HUGE_PAGE:
        _ask_for_huge_pages(storage)
    return storage


def _ask_for_huge_pages(storage: torch.UntypedStorage) -> None:
    """Have the kernel map the whole pages of 2 MB in `storage` as such: the first touch of memory,
    4 KB at a time, takes as long as a third of the random numbers for it. A hint; where the kernel
    does not take it, nothing is lost.
    """
    advise = _madvise()
    if advise is None:
        return
    first = -(-storage.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
    last = (storage.data_ptr() + storage.nbytes()) // _HUGE_PAGE * _HUGE_PAGE
    if last > first:
        advise(first, last - first, _MADV_HUGEPAGE)


@cache
def _madvise() -> Any:
    """madvise of the C library, on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise


def view_of(storage: torch.UntypedStorage, record: Metadata) -> torch.Tensor:
    """A real tensor of that metadata on `storage`."""
    view = torch.empty(0, dtype=record.dtype, device=storage.device)
    view.set_(storage, record.offset, record.size, record.stride)
    _private.set_bits(view, record.conj, record.neg)
    return view


def flat_view(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    """All of a storage, as one dimension of `dtype`."""
    view = torch.empty(0, dtype=dtype, device=storage.device)
    return view.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
