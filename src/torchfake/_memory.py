"""Real memory for what was recorded.

Enters: sizes, devices, metadata records. Leaves: real storages, and real tensors on them.
Invariant: what is handed out is new.
"""

from __future__ import annotations

import torch

from torchfake import _private
from torchfake._metadata import Metadata

_CPU = torch.device("cpu")


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
    return torch.UntypedStorage(num_bytes, device=real_device(device))


def view_of(storage: torch.UntypedStorage, record: Metadata) -> torch.Tensor:
    """A real tensor of that metadata on `storage`."""
    view = torch.empty(0, dtype=record.dtype, device=storage.device)
    view.set_(storage, record.offset, record.size, record.stride)
    _private.set_bits(view, record.conj, record.neg)
    return view


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a real tensor on the host, in order of its elements: uint8[n]."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    in_order = plain.as_strided((plain.numel(),), (1,))  # a dimension of 1 may have any stride
    return in_order.view(torch.uint8)


def flat_view(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    """All of a storage, as one dimension of `dtype`."""
    view = torch.empty(0, dtype=dtype, device=storage.device)
    return view.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
