"""The lifetimes of storages, as columns.

Input: a :class:`Lifetime` for each storage that was allocated in a run. Output: :class:`Lifetimes`,
one row per storage, in order of allocation; the bytes held after each event. Invariant: an event is
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
    "unsharded parameters",
    "communication",
)
"""What a storage is used for. The last two occur in plans: parameters that FSDP has gathered, and
memory of messages that is not a parameter, gradient or activation.
"""

PHASES = ("start", "forward", "backward", "optimizer", "prefill", "decode")
"""The phases of a step."""

Array = np.ndarray[Any, Any]


class Lifetime:
    """One storage: its size, when it was allocated and freed, for what, and by which code."""

    __slots__ = (
        "allocated_at", "category", "device", "freed_at", "location", "module", "node", "num_bytes",
        "op", "phase", "stream", "used_on",
    )  # fmt: skip

    allocated_at: int  # event
    freed_at: int  # event; -1 while the storage is alive
    category: str  # "" while it is not known
    device: torch.device
    module: str  # the full name of the module that was running
    node: int | None  # in a backward pass, the number of the graph's node that allocated it
    num_bytes: int
    op: Any  # the operator that allocated it; None if the storage existed before the step
    phase: str  # the phase in which it was allocated
    location: RawLocation | None  # of the allocation, in the user's code
    stream: int  # the stream it was allocated on; 0 is the device's default stream
    used_on: tuple[int, ...]  # other streams that it was passed to with record_stream


class Lifetimes(NamedTuple):
    """The lifetimes of all storages of a run, one row each, in order of allocation."""

    num_bytes: Array  # int64, as requested: not rounded
    allocated_at: Array  # int64, event
    freed_at: Array  # int64, event; `num_events` if the storage is alive at the end
    category: Array  # int8, index into CATEGORIES
    phase: Array  # int8, index into PHASES: the phase of the allocation
    device: tuple[str, ...]
    module: tuple[str, ...]
    op: tuple[str, ...]  # "" if the storage existed before the step
    location: tuple[RawLocation | None, ...]
    stream: Array  # int64, the stream of the allocation; 0 is the default stream
    used_on: tuple[tuple[int, ...], ...]  # other streams that use the storage
    num_events: int
    scratch: tuple[Any, ...] = ()  # a ScratchCall for each call that differs between GPUs

    def held_bytes(self, allocated_at: Array, sizes: Array) -> Array:
        """Bytes held after each event, int64 [events].

        Args:
            allocated_at: the event of each row's allocation: this table's column, or other events.
            sizes: bytes of each row, as requested or rounded.
        """
        changes = np.zeros(self.num_events + 1, dtype=np.int64)
        np.add.at(changes, allocated_at, sizes)
        np.subtract.at(changes, self.freed_at, sizes)
        return np.cumsum(changes[:-1])

    def on_device(self, device: torch.device | str) -> Array:
        """Mask of the rows whose storage is on `device`, bool."""
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
            self.scratch,
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
