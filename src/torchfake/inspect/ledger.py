"""Every storage of a run, from birth to death.

Enters: operations on fakes, while a :class:`Ledger` sits in the mode's slot. Leaves: a
:class:`Life` for each storage, as columns. Invariant: a storage is alive for exactly as long as the
memory it stands for would be; nothing here keeps one.

Births are results of operators that nobody has seen before; deaths are told by weak references. One
clock counts both, so that any two events are in order.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from torchfake._dispatch import FakeDispatch, dispatch
from torchfake._metadata import Storage
from torchfake._origin import Place
from torchfake._tensor import FakeTensor
from torchfake.inspect.bounds import check_indices
from torchfake.inspect.running import Running

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
"""What a storage can be of use for."""

PHASES = ("start", "forward", "backward", "optimizer", "prefill", "decode")
"""What a step goes through."""


class Life:
    """One storage: what it takes, from when to when, what for, and where it was made."""

    __slots__ = (
        "born", "category", "device", "died", "module", "num_bytes", "op", "phase", "place", "ref",
    )  # fmt: skip

    born: int  # the clock at its birth
    died: int  # and at its death; -1 while it is alive
    category: str
    device: torch.device
    module: str  # the full name of the module that was running
    num_bytes: int
    op: Any  # the operator that made it; None at the start
    phase: str
    place: Place | None  # in the user's code
    ref: weakref.ref[Storage]


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows whose life ends with it."""

    __slots__ = ("key", "life")
    key: int
    life: Life


class Ledger(FakeDispatch):
    """The dispatch of a mode that also keeps the books."""

    def __init__(self, running: Running) -> None:
        super().__init__()
        self.running = running
        self.lives: list[Life] = []
        self.clock = 0
        self.end = 0  # the clock when the step was over
        self.phase = "start"
        self.ops: set[Any] = set()  # that ran
        self._refs: dict[int, _Ref] = {}  # of those alive, by identity
        self._recomputed: list[Life] = []  # in a backward pass with gradients on, as yet

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._recomputed and not torch.is_grad_enabled():
            self._end_of_recomputation()
        check_indices(func, args)
        result = dispatch(self, func, types, args, kwargs or {})
        if isinstance(result, FakeTensor):
            self._saw(result._fake_storage, func)
        elif isinstance(result, (list, tuple)):
            for item in result:
                if isinstance(item, FakeTensor):
                    self._saw(item._fake_storage, func)
        self.ops.add(func)
        return result

    def _saw(self, storage: Storage, op: Any) -> None:
        ref = self._refs.get(id(storage))
        if ref is None:
            self._born(storage, op, "")
        elif ref.life.num_bytes != storage.num_bytes:  # resized: new memory, then the old goes
            self._born(storage, op, ref.life.category)
            self._died(ref)

    def _end_of_recomputation(self) -> None:
        """What a checkpointed forward in the backward pass has left behind it is activations."""
        for life in self._recomputed:
            if life.died < 0:
                life.category = life.category or "activations"
        self._recomputed.clear()

    def _born(self, storage: Storage, op: Any, category: str) -> Life:
        life = Life()
        life.num_bytes, life.device = storage.num_bytes, storage.device
        life.born, life.died, self.clock = self.clock, -1, self.clock + 1
        life.category, life.phase, life.op = category, self.phase, op
        life.module, life.place = self.running.name, storage.place
        life.ref = ref = _Ref(storage, self._died)
        ref.key, ref.life = id(storage), life
        self._refs[id(storage)] = ref
        self.lives.append(life)
        if self.phase == "backward" and self.running.is_recomputing:
            self._recomputed.append(life)
        return life

    def _died(self, ref: _Ref) -> None:
        ref.life.died, self.clock = self.clock, self.clock + 1
        if self._refs.get(ref.key) is ref:
            del self._refs[ref.key]

    def enter(self, tensors: Iterable[tuple[str, torch.Tensor]], category: str) -> None:
        """Enter what is there already, as `category`: tensors beside their modules' names."""
        for module, tensor in tensors:
            storage = tensor._fake_storage  # type: ignore[attr-defined]
            ref = self._refs.get(id(storage))
            life = self._born(storage, None, category) if ref is None else ref.life
            if not life.category or ref is None:
                life.category, life.module = category, module

    def reassign(self, tensors: Iterable[tuple[str, torch.Tensor]], category: str) -> None:
        """These turned out to be `category`, of the modules named."""
        for module, tensor in tensors:
            if not isinstance(tensor, FakeTensor):
                continue
            ref = self._refs.get(id(tensor._fake_storage))
            if ref is not None and ref.life.category in ("", "activations"):
                ref.life.category, ref.life.module = category, module

    def begin(self, phase: str) -> None:
        """What comes now is of `phase`."""
        self.phase = phase

    def end_of_forward(self) -> None:
        """What is alive now and was made since is activations."""
        for ref in self._refs.values():
            if not ref.life.category:
                ref.life.category = "activations"

    def over(self) -> None:
        """The step is over; what is let go from here on was held at its end."""
        self.end = self.clock

    def close(self) -> Lives:
        """The books as columns; from here on nothing is noticed any more."""
        self._refs.clear()
        for life in self.lives:
            del life.ref
            if not 0 <= life.died < self.end:
                life.died = self.end
        return columns_of([life for life in self.lives if life.born < self.end], self.end)


class Lives(NamedTuple):
    """The lives of all storages of a run, one row each, in order of birth."""

    num_bytes: np.ndarray[Any, Any]  # int64, as asked for: not rounded
    born: np.ndarray[Any, Any]  # int64
    died: np.ndarray[Any, Any]  # int64; `num_events`: alive at the end
    category: np.ndarray[Any, Any]  # int8, into CATEGORIES
    phase: np.ndarray[Any, Any]  # int8, into PHASES: that it was born in
    device: tuple[str, ...]
    module: tuple[str, ...]
    op: tuple[str, ...]  # "" of what was there at the start
    place: tuple[Place | None, ...]
    num_events: int

    def held(self, born: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Bytes held after each event, int64 [events], if they were born then and are so large."""
        changes = np.zeros(self.num_events + 1, dtype=np.int64)
        np.add.at(changes, born, sizes)
        np.subtract.at(changes, self.died, sizes)
        return np.cumsum(changes[:-1])

    def rows(self, which: np.ndarray[Any, Any]) -> Lives:
        """Those that `which` marks."""
        kept = np.flatnonzero(which).tolist()
        return Lives(
            self.num_bytes[which],
            self.born[which],
            self.died[which],
            self.category[which],
            self.phase[which],
            tuple(self.device[i] for i in kept),
            tuple(self.module[i] for i in kept),
            tuple(self.op[i] for i in kept),
            tuple(self.place[i] for i in kept),
            self.num_events,
        )


def columns_of(lives: list[Life], num_events: int) -> Lives:
    """Lives as columns; what nobody claimed is temporaries."""
    names: dict[Any, str] = {None: ""}
    devices: dict[torch.device, str] = {}
    return Lives(
        np.array([life.num_bytes for life in lives], dtype=np.int64),
        np.array([life.born for life in lives], dtype=np.int64),
        np.array([life.died for life in lives], dtype=np.int64),
        np.array([CATEGORIES.index(life.category or "temporaries") for life in lives], np.int8),
        np.array([PHASES.index(life.phase) for life in lives], np.int8),
        tuple(devices.setdefault(life.device, str(life.device)) for life in lives),
        tuple(life.module for life in lives),
        tuple(names.setdefault(life.op, str(life.op)) for life in lives),
        tuple(life.place for life in lives),
        num_events,
    )
