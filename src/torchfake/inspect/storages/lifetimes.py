"""The lifetimes of storages, as columns.

Input: a :class:`Lifetime` for each storage that was allocated in a run. Output: :class:`Lifetimes`,
one row for each, in order of allocation; the bytes held after each event. Invariant: an event is
one allocation or one deallocation; events are numbered in the order in which they happened.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from torchfake.observe import RawLocation

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "temporaries",
    "buffers",
    "inputs",
    "kv cache",
)
"""What a storage is used for."""

PHASES = ("start", "forward", "backward", "optimizer", "prefill", "decode")
"""The phases of a step."""

Array = np.ndarray[Any, Any]


class Lifetime:
    """One storage: its size, when it was allocated and freed, for what, and by which code."""

    __slots__ = (
        "allocated_at", "category", "device", "freed_at", "location", "module", "num_bytes", "op",
        "phase", "stream", "used_on",
    )  # fmt: skip

    allocated_at: int  # event
    freed_at: int  # event; -1 while the storage is alive
    category: str  # "" while it is not known
    device: torch.device
    module: str  # the full name of the module that was running
    num_bytes: int
    op: Any  # the operator that allocated it; None for what existed at the start
    phase: str
    location: RawLocation | None  # in the user's code
    stream: int  # of the device: 0 is the default one
    used_on: tuple[int, ...]  # other streams, as record_stream says


class Lifetimes(NamedTuple):
    """The lifetimes of all storages of a run, one row each, in order of allocation."""

    num_bytes: Array  # int64, as requested: not rounded
    allocated_at: Array  # int64, event
    freed_at: Array  # int64, event; `num_events` if it is alive at the end
    category: Array  # int8, index into CATEGORIES
    phase: Array  # int8, index into PHASES: in which it was allocated
    device: tuple[str, ...]
    module: tuple[str, ...]
    op: tuple[str, ...]  # "" for what existed at the start
    location: tuple[RawLocation | None, ...]
    stream: Array  # int64: on which it was allocated; 0 is the default one
    used_on: tuple[tuple[int, ...], ...]  # other streams that use it
    num_events: int

    def held_bytes(self, allocated_at: Array, sizes: Array) -> Array:
        """Bytes held after each event, int64 [events].

        Args:
            allocated_at: the event of each row's allocation: those of this table, or others.
            sizes: bytes of each row, as requested or rounded.
        """
        changes = np.zeros(self.num_events + 1, dtype=np.int64)
        np.add.at(changes, allocated_at, sizes)
        np.subtract.at(changes, self.freed_at, sizes)
        return np.cumsum(changes[:-1])

    def on_device(self, device: torch.device | str) -> Array:
        """Which rows are of storages on `device`, bool."""
        return np.array([name == str(device) for name in self.device], dtype=bool)

    def rows(self, mask: Array) -> Lifetimes:
        """The rows for which `mask` is true."""
        indices = np.flatnonzero(mask).tolist()
        return Lifetimes(
            self.num_bytes[mask],
            self.allocated_at[mask],
            self.freed_at[mask],
            self.category[mask],
            self.phase[mask],
            tuple([self.device[i] for i in indices]),
            tuple([self.module[i] for i in indices]),
            tuple([self.op[i] for i in indices]),
            tuple([self.location[i] for i in indices]),
            self.stream[mask],
            tuple([self.used_on[i] for i in indices]),
            self.num_events,
        )


def columns_of(lives: list[Lifetime], num_events: int) -> Lifetimes:
    """Lifetimes as columns; storages without a category are temporaries."""
    op_names: dict[Any, str] = {None: ""}
    device_names: dict[torch.device, str] = {}
    return Lifetimes(
        np.array([life.num_bytes for life in lives], dtype=np.int64),
        np.array([life.allocated_at for life in lives], dtype=np.int64),
        np.array([life.freed_at for life in lives], dtype=np.int64),
        np.array([CATEGORIES.index(life.category or "temporaries") for life in lives], np.int8),
        np.array([PHASES.index(life.phase) for life in lives], np.int8),
        tuple([device_names.setdefault(life.device, str(life.device)) for life in lives]),
        tuple([life.module for life in lives]),
        tuple([op_names.setdefault(life.op, str(life.op)) for life in lives]),
        tuple([life.location for life in lives]),
        np.array([life.stream for life in lives], dtype=np.int64),
        tuple([life.used_on for life in lives]),
        num_events,
    )
