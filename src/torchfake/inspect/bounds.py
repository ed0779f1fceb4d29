"""Indices that eager refuses and that fakes let pass, since their values are seldom known.

Enters: an operator that looks rows up, and its arguments. Leaves: nothing, or the error eager
raises on the CPU. Invariant: only values that are known are judged: positions mostly, which count
up to the length of a sequence.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake import _values
from torchfake._tensor import FakeTensor

_LOOKUP = torch.ops.aten.embedding.default


def check_indices(func: Any, args: tuple[Any, ...]) -> None:
    """Refuse a lookup beyond the end of a table, as a sequence longer than a model's positions is.

    Raises:
        IndexError: in the words of eager.
    """
    if func is not _LOOKUP or not isinstance(args[1], FakeTensor):
        return
    if args[1]._fake_storage.value is None or not args[1].numel():
        return
    with _values.on_host():
        indices = _values.read(args[1], "a lookup")
        if indices.min() < 0 or indices.max() >= args[0].shape[0]:
            raise IndexError("index out of range in self")
