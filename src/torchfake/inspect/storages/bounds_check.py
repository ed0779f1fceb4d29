"""Bounds checks of embedding lookups, which operators on fakes do not perform.

Input: the arguments of a lookup. Output: nothing, or the error that eager raises on the CPU.
Invariant: only indices with known values are checked, which are mostly the positions of tokens;
those of another dtype than integers are left to the operator, which refuses them.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake.observe import Observer, known_value, no_mode

LOOKUP = torch.ops.aten.embedding.default
"""The operator whose indices are checked; its arguments are the table and the indices."""


class BoundsChecks(Observer):
    """Checks the lookups of a run that is not tracked."""

    sees_storages = False

    def call_operator(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is LOOKUP:
            check_indices(args)
        return run(func, types, args, kwargs)


def check_indices(args: tuple[Any, ...]) -> None:
    """Refuse an index outside of the table, such as a position beyond a model's position embedding.

    Raises:
        IndexError: if a known index is out of range; with the message of eager.
    """
    indices = known_value(args[1])
    if indices is not None and indices.numel() and indices.dtype in (torch.int32, torch.int64):
        with no_mode():
            if indices.min() < 0 or indices.max() >= args[0].shape[0]:
                raise IndexError("index out of range in self")
