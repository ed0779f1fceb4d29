"""A model that can be built: the record that a TARGET is resolved to.

Input: a constructor, a name, notes. Output: a :class:`Target`. Invariant: nothing is built yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Target:
    """A model that can be built."""

    text: str  # as the user wrote it
    name: str  # of the class or function, for messages
    construct: Callable[[], Any]  # makes the model; called inside fake_mode
    dtype: torch.dtype | None = None  # the one its config names
    notes: tuple[str, ...] = ()  # to be shown with the results
    quantization: dict[str, Any] | None = None  # the quantization_config of its config
    is_built: bool = False  # it is an instance: `construct` makes fake copies
    saved: Callable[[], dict[str, Any]] | None = None  # reads the headers of its checkpoint
