"""The record of a resolved TARGET: a model that can be built.

Input: a constructor, a name, notes. Output: a :class:`Target`. Invariant: the model is not built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

NOT_READ = "built from its config: its checkpoint was not read"
"""The note where a target has a checkpoint, and an answer is about the model of its config."""


@dataclass(frozen=True)
class Target:
    """A model that can be built."""

    text: str  # as the user wrote it
    name: str  # of the class or function, for messages
    construct: Callable[[], Any]  # builds the model; to be called inside fake_mode
    dtype: torch.dtype | None = None  # the dtype in the config
    notes: tuple[str, ...] = ()  # shown with the results
    quantization: dict[str, Any] | None = None  # the quantization_config in the config
    is_built: bool = False  # whether the TARGET is an instance, which `construct` copies
    saved: Callable[[], dict[str, Any]] | None = None  # reads the headers of the checkpoint

    @property
    def notes_of_config(self) -> tuple[str, ...]:
        """The notes on an answer about the model of the config, for which no file is read."""
        return self.notes if self.saved is None else (*self.notes, NOT_READ)
