"""External tensors: real tensors among the arguments of recorded operations.

Input: a real tensor. Output: a reference to it, and whether it was written since. Invariant: a
replay never uses values that a tensor did not have when the operation was recorded: writes are
detected by the version counter, or by a sample of the values where they do not count as versions.
Called by: ``_recording``, ``_files/assign`` and ``_graph/deferred_storage``, which make externals;
``_replay``, ``_materialize/dematerialize`` and ``_recording/graph_text``, which read them.
"""

from __future__ import annotations

import ctypes

import torch

from torchfake._torch import dispatcher
from torchfake.errors import RecordError


class External:
    """A real tensor, held by reference. It must not be written before it is replayed."""

    __slots__ = ("_sample_hash", "_version", "_versioned", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._versioned: torch.Tensor | None = None  # the tensor whose version is compared
        self._version = 0
        with dispatcher.no_interception():
            self.tensor = tensor.detach()  # its memory now, whatever ``tensor.data`` is later
            if not tensor.is_inference():
                self._versioned, self._version = tensor, tensor._version
                self._sample_hash = _sample_hash(self.tensor)
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
        """Whether the tensor was written since this was made."""
        if self._versioned is None:
            return False
        with dispatcher.no_interception():
            if self._versioned._version != self._version:
                return True
            return _sample_hash(self.tensor) != self._sample_hash


def _sample_hash(tensor: torch.Tensor) -> int:
    """The hash of evenly spaced elements: it detects most writes that do not increase the version
    counter, such as those through ``tensor.data``.
    """
    flat = tensor.as_strided((tensor.numel(),), (1,)) if tensor.is_contiguous() else tensor
    step = max(1, tensor.numel() // _NUM_SAMPLED)
    sample = flat[::step] if flat.dim() == 1 else flat.reshape(-1)[::step]
    host = torch.empty(sample.shape, dtype=tensor.dtype, device="cpu").copy_(sample)
    return hash(ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()))


_NUM_SAMPLED = 512


MAX_COPIED_BYTES = 64 * 1024
"""Inference tensors up to this size are copied."""

MAX_EXTERNAL_BYTES = 64 * 1024
"""Larger real tensors are not kept alive for the sake of another materialization."""
