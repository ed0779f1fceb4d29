"""The bytes that a tensor of any class takes.

Input: a tensor. Output: bytes, and the dtypes of what is stored. Invariant: memory that a tensor
has under several names is counted once.
"""

from __future__ import annotations

import torch

from torchfake._tensor.copies import held_tensors
from torchfake._torch import subclass
from torchfake._torch.distributed import is_dtensor


def held_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor; of one that holds others, such as a quantized one, those of the others.

    A DTensor is counted whole, with the shards of all ranks.
    """
    held = [tensor] if is_dtensor(tensor) else held_tensors(tensor)
    if len(held) == 1 and held[0] is tensor:
        return tensor.numel() * tensor.dtype.itemsize
    storages = [each.untyped_storage() for each in held]
    return sum({subclass.storage_key(s): s.nbytes() for s in storages}.values())
