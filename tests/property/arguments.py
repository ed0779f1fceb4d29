"""How an operation of a generated program picks its arguments, from the bytes of its step.

Input: the bytes of a step, and the tensors alive. Output: tensors, dims, sizes, dtypes and numbers.
Invariant: a pick reads metadata only, so that a program means the same on any two pools of tensors
with the same metadata, and shrinks well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


COMPLEX = (torch.complex64, torch.complex128)


INTEGER = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


DTYPES = (*FLOATING, *INTEGER, torch.bool, *COMPLEX)

_SIZES = (2, 3, 1, 4, 0)
# Memory that nobody has written is of floats here: of integers, fakes say that it is zeros.
_NUMBERS = (1, 0, 2, -1, 0.5, True, 3)


class NothingFits(Exception):
    """No tensor of the pool is what the operation needs: the step does nothing."""


class Picks:
    """What a step picks from: its own bytes, read cyclically, and the tensors alive."""

    def __init__(self, picks: bytes, pool: list[Tensor]) -> None:
        self._bytes = itertools.cycle(picks)
        self.pool = pool

    def below(self, count: int) -> int:
        return next(self._bytes) % count

    def of(self, options: Any) -> Any:
        return options[self.below(len(options))]

    def tensor(self, fits: Callable[[Tensor], bool] = lambda tensor: True) -> Tensor:
        """One of the tensors alive, the youngest first."""
        fitting = [tensor for tensor in reversed(self.pool) if fits(tensor)]
        if not fitting:
            raise NothingFits
        return self.of(fitting)

    def floating(self) -> Tensor:
        return self.tensor(lambda t: t.dtype.is_floating_point)

    def real(self) -> Tensor:
        return self.tensor(lambda t: not t.dtype.is_complex)

    def dtype(self) -> torch.dtype:
        return self.of(DTYPES)

    def dim(self, tensor: Tensor) -> int:
        return self.below(max(tensor.dim(), 1)) if self.below(4) else -1

    def shape(self) -> tuple[int, ...]:
        return tuple(self.of(_SIZES) for _ in range(self.of((2, 1, 3, 0, 4))))

    def number(self) -> Any:
        return self.of(_NUMBERS)

    def positions(self, tensor: Tensor, dim: int) -> Tensor:
        """Valid positions along a dim, with repetitions."""
        size = tensor.shape[dim] if tensor.dim() else 1
        return torch.arange(3, device=tensor.device) % max(size, 1)

    def mask(self, tensor: Tensor) -> Tensor:
        """A mask whose value is known, for `tensor`."""
        known = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
        return known % (2 + self.below(3)) == 0
