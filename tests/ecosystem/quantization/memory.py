"""The memory of tensors, counted as the tests of this folder compare it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchfake._torch import subclass


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of the storages of `tensors`, each counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({subclass.storage_key(s): s.nbytes() for s in storages}.values())
