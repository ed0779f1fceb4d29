"""Values known on the host.

Enters: small tensors whose history is plain host data. Leaves: their real bytes, held by the
storage, so every view of it reads and writes the same value. Invariants: a value belongs to one
storage alone (what the user owns is copied, never shared); a storage is forgotten as soon as
something unknown is written to any part of it.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake import _memory, _private, _replay
from torchfake._metadata import Storage
from torchfake.errors import UnknownValueError

MAX_KNOWN_BYTES = 64 * 1024
"""The largest storage of floats that keeps its value: rotary tables, drop-path rates, scales."""

MAX_KNOWN_BYTES_OF_INTEGERS = 1024 * 1024
"""The largest of integers and booleans, which are positions and masks: 16 x 8,192 int64."""


def fits(num_bytes: int, dtype: torch.dtype) -> bool:
    """Whether a storage of `num_bytes` seen as `dtype` is small enough to keep its value."""
    is_number = dtype.is_floating_point or dtype.is_complex
    return num_bytes <= (MAX_KNOWN_BYTES if is_number else MAX_KNOWN_BYTES_OF_INTEGERS)


class on_host:
    """Context: make real tensors although a mode is on."""

    def __enter__(self) -> None:
        self._previous = _private.swap_fake_mode(None)

    def __exit__(self, *error: Any) -> None:
        _private.swap_fake_mode(self._previous)


def remember(storage: Storage, value: torch.UntypedStorage, dtype: torch.dtype) -> None:
    """Let `storage` know a copy of `value`, if it is small enough."""
    if fits(storage.num_bytes, dtype):
        with on_host():
            storage.value = value.clone()


def remember_tensor(storage: Storage, real: torch.Tensor) -> None:
    """The same of the memory that `real` looks at: faster, where that is all of it in order."""
    covers = real.numel() * real.element_size() == storage.num_bytes
    if not (covers and real.is_contiguous()) or real.is_conj() or real.is_neg():
        remember(storage, real.untyped_storage(), real.dtype)
    elif fits(storage.num_bytes, real.dtype):
        with on_host():
            storage.value = real.detach().clone().untyped_storage()


def read(fake: Any, asked_by: str) -> torch.Tensor:
    """The real value of `fake`.

    Raises:
        UnknownValueError: naming what was asked, the tensor, and the line that made it.
    """
    storage = fake._fake_storage
    if storage.recorded is not None:
        return _replay.value_of(storage.recorded, fake._fake_meta)
    if storage.value is None:
        raise unknown(fake, asked_by)
    with on_host():
        return _memory.view_of(storage.known_bytes(), fake._fake_meta)


def unknown(fake: Any, asked_by: str) -> UnknownValueError:
    """The error for reading `fake`, ready to be raised."""
    return UnknownValueError(
        f"{asked_by} needs the value of a fake tensor, and it is not known: "
        f"{describe(fake)}. Fakes keep the values of small tensors computed from host data only. "
        "Give this branch a host value (torch.tensor(...), torch.arange(...)), or skip it for "
        "fakes with torchfake.is_fake(tensor)"
    )


def describe(fake: Any) -> str:
    """A fake in an error message: its metadata, and where in the user's code it was made."""
    meta, storage = fake._fake_meta, fake._fake_storage
    text = f"{str(meta.dtype).removeprefix('torch.')}{list(meta.size)} on {meta.device}"
    if storage.op is not None:
        text += f", made by {storage.op}"
    if storage.origin is not None:
        text += f" at {storage.origin}"
    return text
