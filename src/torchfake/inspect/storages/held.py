"""What is held at one moment of a step, and at every moment.

Input: computed from the lifetimes of storages. Output: records, plain data. Invariant: the bytes of
all categories add up to what is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchfake.inspect.storages.lifetimes import Array


@dataclass(frozen=True)
class Peak:
    """The event after which the most memory is held."""

    num_bytes: int
    event: int  # the number of allocations and deallocations before the peak
    phase: str  # the phase of the step: "forward", "backward", "optimizer", ...
    module: str  # the full name of the module that ran, forward or backward; "" for none
    op: str  # the operator that allocated last; "" if nothing was allocated after the start
    line: str  # the line of the user's code that called the operator; "" if it is not known
    by_category: dict[str, int]  # bytes, the largest first; they add up to num_bytes

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Timeline:
    """Bytes held after each event, by category."""

    categories: tuple[str, ...]
    num_bytes: Array  # int64 [events, categories]
    phase: Array  # int8 [events], into PHASES

    @property
    def total(self) -> Array:
        """Total bytes held, int64 [events]."""
        total: Array = self.num_bytes.sum(axis=1)
        return total
