"""The books of one rank: storages as in any step, and what it sends.

Enters: operations on fakes and on DTensors of fakes. Leaves: the life of every storage of this
rank, and every message. Invariant: a DTensor is what it holds; what is counted is local.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from torchfake._collectives import Message, message_of
from torchfake._metadata import Storage
from torchfake._ops import plan_of
from torchfake._tensor import FakeTensor
from torchfake.distributed import elementwise
from torchfake.distributed.shards import Uneven, local_tensors
from torchfake.inspect.ledger import Ledger, Life, Lives
from torchfake.inspect.running import Running

aten = torch.ops.aten

UNSHARDED, COMMUNICATION = "unsharded parameters", "communication"
_ROLES = ("", UNSHARDED, COMMUNICATION)
_GATHERED_INTO = "fsdp::split_with_sizes_copy"
"""Copies what FSDP2 has gathered to where the unsharded parameters are."""


class Traffic(NamedTuple):
    """The messages of one kind, along one axis, in one phase: as one rank takes part in them."""

    phase: str  # "forward", "backward" or "optimizer"
    collective: str  # "all_gather", ...
    axis: str  # of the mesh; "dp x tp" for a group along both
    group_size: int  # ranks
    num_calls: int
    num_bytes: int  # payload: of the whole that is gathered, reduced, scattered or sent
    sent_bytes: int  # by each rank, in a ring

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return self._asdict()


class RankLedger(Ledger):
    """A ledger that knows what is distributed."""

    def __init__(
        self, running: Running, uneven: Uneven, where: Callable[[Any], tuple[str, int]]
    ) -> None:
        super().__init__(running)
        self.uneven = uneven
        self._where = where  # a process group -> the axis it lies along, and its size
        self._traffic: dict[tuple[str, str, str, int], list[int]] = {}
        self._roles: dict[int, int] = {}  # into _ROLES, by the id of a life

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(_is_others, types)):
            self.uneven.meet((*args, *kwargs.values()))
            return elementwise.on_shards(self._run, func, args, kwargs)
        return self._run(func, types, args, kwargs)

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        message = message_of(func, args, kwargs, lambda group: self._where(group)[1])
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if message is not None:
            self._count(message)
            self._play(COMMUNICATION, (args, kwargs, result))
        elif plan_of(func).packet == _GATHERED_INTO:
            self._play(UNSHARDED, kwargs["out"])
        return result

    def _count(self, message: Message) -> None:
        axis, size = self._where(message.group)
        key = self.phase, message.collective, axis, size
        sums = self._traffic.setdefault(key, [0, 0, 0])
        for i, number in enumerate((1, message.num_bytes, message.sent_bytes(size))):
            sums[i] += number

    def _play(self, role: str, tensors: Any) -> None:
        """These storages are there for that."""
        if isinstance(tensors, FakeTensor):
            ref = self._refs.get(id(tensors._fake_storage))
            if ref is not None:
                self._roles.setdefault(id(ref.life), _ROLES.index(role))
        elif isinstance(tensors, (list, tuple)):
            for tensor in tensors:
                self._play(role, tensor)
        elif isinstance(tensors, dict):
            self._play(role, list(tensors.values()))

    def resized(self, storage: Storage) -> None:
        """A storage has another size by now: FSDP's way to free an unsharded parameter."""
        if id(storage) not in self._refs:
            return
        self._saw(storage, aten.resize_.default)
        self._roles[id(self._refs[id(storage)].life)] = _ROLES.index(UNSHARDED)

    def enter(self, tensors: Iterable[tuple[str, torch.Tensor]], category: str) -> None:
        super().enter(_held(tensors), category)

    def reassign(self, tensors: Iterable[tuple[str, torch.Tensor]], category: str) -> None:
        super().reassign(_held(tensors), category)

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What was sent, in the order of the phases."""
        return tuple(Traffic(*key, *sums) for key, sums in self._traffic.items())

    def close_with_roles(self) -> tuple[Lives, np.ndarray[Any, Any]]:
        """The books as columns, and beside them each life's role, int8 into ``_ROLES``."""
        kept: list[Life] = [life for life in self.lives if life.born < self.end]
        roles = np.array([self._roles.get(id(life), 0) for life in kept], dtype=np.int8)
        return self.close(), roles


def _is_others(cls: type) -> bool:
    return not issubclass(cls, (FakeTensor, torch.nn.Parameter)) and cls is not torch.Tensor


def _held(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterable[tuple[str, torch.Tensor]]:
    """The same with what DTensors hold in their place."""
    for module, tensor in tensors:
        for local in local_tensors(tensor):
            if isinstance(local, FakeTensor):
                yield module, local
