"""Bounds checks of indices, which fakes skip because values of fakes are seldom known.

Input: the arguments of a lookup. Output: nothing, or the error that eager raises on the CPU.
Invariant: only known values are checked: mostly positions, which count up to the length of a
sequence.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake.observe import known_value, no_mode

LOOKUP = torch.ops.aten.embedding.default
"""The operator whose indices are checked: its arguments are a table and indices."""


def check_indices(args: tuple[Any, ...]) -> None:
    """Refuse a lookup outside a table, such as a position beyond those that a model has.

    Raises:
        IndexError: with the message of eager.
    """
    indices = known_value(args[1])
    if indices is not None and indices.numel():
        with no_mode():
            if indices.min() < 0 or indices.max() >= args[0].shape[0]:
                raise IndexError("index out of range in self")
