"""Writes to storages of real tensors, inside a mode.

Input: the originals of methods by which storages are written. Output: versions that write the
memory of a real storage. Invariant: no fake takes part: C++ and ``TypedStorage`` write through an
empty tensor that they have view the storage, which would be a fake with a copy of the memory.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import modes
from torchfake._patches.patch import Patch, replacing
from torchfake._tensor.storages import FakeUntypedStorage, real_storage
from torchfake._torch import dispatcher


@replacing
def _write(original: Any, storage: Any, *args: Any, **kwargs: Any) -> Any:
    """A method that writes: of a real storage the bytes, whatever mode is on."""
    if modes.current() is None or isinstance(_untyped(storage), FakeUntypedStorage):
        return original(storage, *args, **kwargs)
    with_memory = [_with_memory(each) for each in args]
    named = {name: _with_memory(each) for name, each in kwargs.items()}
    with dispatcher.as_eager():
        return original(storage, *with_memory, **named)


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)


def _with_memory(value: Any) -> Any:
    """An argument: of the storage of a deferred fake its memory, of another fake an error."""
    untyped = _untyped(value)
    if not isinstance(untyped, FakeUntypedStorage):
        return value
    return real_storage(untyped._fake_storage, "copy_()")


PATCHES = [
    *(Patch(torch.UntypedStorage, name, _write) for name in ("fill_", "copy_", "__setitem__")),
    Patch(torch.TypedStorage, "_setitem", _write),
]
