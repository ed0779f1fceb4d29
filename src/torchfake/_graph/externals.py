"""External tensors: real tensors among the arguments of recorded operations.

Input: a real tensor. Output: a reference to it, and whether it was written later. Invariant: a
replay never uses values that a tensor did not have when the operation was recorded. Writes are
detected by the version counter; writes that do not increase the counter, by a hash of the bytes.
"""

from __future__ import annotations

from functools import cache

import torch

from torchfake._core import memory
from torchfake._core.metadata import bytes_spanned
from torchfake._torch import dispatcher
from torchfake.errors import RecordError


class External:
    """A real tensor, held by reference, that must not be written before the replay reads it."""

    __slots__ = ("_digest", "_version", "_versioned", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._versioned: torch.Tensor | None = None  # the tensor whose version is compared
        self._version = 0
        with dispatcher.no_interception():
            self.tensor = tensor.detach()  # keeps this memory, even if ``tensor.data`` is set later
            if not tensor.is_inference():
                self._versioned, self._version = tensor, tensor._version
                self._digest = _digest(self.tensor)
            elif tensor.numel() * tensor.element_size() <= MAX_COPIED_BYTES:
                self.tensor = tensor.clone()
            else:
                raise RecordError(
                    f"a real inference tensor of shape {list(tensor.shape)} takes part in a "
                    "deferred operation. Inference tensors have no version counter, so a later "
                    "write to this one would not be detected: pass tensor.clone() made outside of "
                    "inference mode"
                )

    @property
    def num_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def is_changed(self) -> bool:
        """Whether the tensor was written after this reference was made."""
        if self._versioned is None:
            return False
        with dispatcher.no_interception():
            if self._versioned._version != self._version:
                return True
            return _digest(self.tensor) != self._digest


def _digest(tensor: torch.Tensor) -> int:
    """A hash of all bytes of a tensor or, for a large tensor, of sums of its 64-bit words. The hash
    detects writes that do not increase the version counter (``tensor.data``, NumPy arrays).

    On the CPU each word is multiplied by an odd number of its own. So a sum changes if any bit of a
    word changes, or if two words are exchanged, unless these differ in the highest bit alone. CUDA
    has no integer matrix product: there, an exchange of words within one row of ``_WORDS_PER_SUM``
    is not detected. This length is odd, so that rows of the tensor do not coincide with such rows.
    """
    num_bytes = tensor.numel() * tensor.element_size()
    is_plain = tensor.is_cpu and tensor.layout is torch.strided
    if is_plain and num_bytes <= MAX_COPIED_BYTES and tensor.is_contiguous():
        return hash(memory.bytes_at(tensor.data_ptr(), num_bytes))  # the hash below, but faster
    flat = _memory_of(tensor)
    num_bytes = flat.numel()
    if num_bytes <= MAX_COPIED_BYTES:
        return _hash_of_bytes(flat)
    head = -flat.storage_offset() % _BYTES_PER_WORD
    num_rows = (num_bytes - head) // (_WORDS_PER_SUM * _BYTES_PER_WORD)
    end = head + num_rows * _WORDS_PER_SUM * _BYTES_PER_WORD
    rows = flat[head:end].view(torch.int64).view(num_rows, _WORDS_PER_SUM)
    sums = rows.mv(_weights()) if rows.device.type == "cpu" else rows.sum(1)
    parts = flat[:head], sums.view(torch.uint8), flat[end:]
    return hash(tuple(map(_hash_of_bytes, parts)))


def _memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of the tensor, uint8[n]; the memory of a copy if the tensor has gaps."""
    for dim in range(tensor.dim()):
        if tensor.stride(dim) == 0:  # expanded: all elements of this dim share their memory
            tensor = tensor.narrow(dim, 0, min(1, tensor.shape[dim]))
    size = tensor.element_size()
    if bytes_spanned(tensor.shape, tensor.stride(), 0, size) != tensor.numel() * size:
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    start = int(tensor.storage_offset()) * size
    return flat.set_(tensor.untyped_storage(), start, (tensor.numel() * size,), (1,))


def _hash_of_bytes(flat: torch.Tensor) -> int:
    host = flat.cpu()
    return hash(memory.bytes_at(host.data_ptr(), host.numel()))


@cache
def _weights() -> torch.Tensor:
    return torch.arange(1, 2 * _WORDS_PER_SUM, 2, dtype=torch.int64, device="cpu")


_BYTES_PER_WORD = 8
_WORDS_PER_SUM = 509  # a prime


MAX_COPIED_BYTES = 64 * 1024
"""Up to this size, inference tensors are copied, and all bytes of other tensors are hashed."""

MAX_EXTERNAL_BYTES = 64 * 1024
"""The most bytes of real tensors kept alive so that a materialized tensor can be deferred again."""
