"""Records the storages of one rank, and the messages that it sends.

Input: operators on fakes and on DTensors of fakes, while a :class:`RankTracker` observes. Output:
the lifetime of every storage of this rank, with categories for communication, and the traffic.
Invariant: a DTensor counts as its shard; all numbers are of this rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch

from torchfake._torch.distributed.dtensors import peer_of, process_group_of
from torchfake.distributed.ranks.foreach_ops import run_on_shards
from torchfake.distributed.ranks.mailboxes import Mailbox
from torchfake.distributed.ranks.point_to_point import Exchanges
from torchfake.distributed.ranks.shard_sizes import UnevenShards
from torchfake.inspect.storages.lifetimes import CATEGORIES, Lifetime, Lifetimes
from torchfake.inspect.storages.storage_tracker import StorageTracker
from torchfake.inspect.timing import commands as timing
from torchfake.observe import (
    FakeTensor,
    Message,
    RunningModules,
    Storage,
    leaf_tensors,
    message_of,
    observing,
    storage_of,
    traits_of,
)

UNSHARDED, COMMUNICATION = "unsharded parameters", "communication"
_REPLACED_BY = {UNSHARDED: ("activations", "temporaries"), COMMUNICATION: ("temporaries",)}
"""The categories that are replaced by a role."""

_COPY_OUT = "fsdp::split_with_sizes_copy"
"""The operator with which FSDP2 copies gathered shards into the unsharded parameters."""

_POINT_TO_POINT = ("c10d::send", "c10d::recv_")


class Traffic(NamedTuple):
    """The messages of a rank in one collective, along one mesh axis, in one phase."""

    phase: str  # "forward", "backward" or "optimizer"
    collective: str  # "all_gather", ...
    axis: str  # of the mesh; "dp x tp" for a group along both axes
    group_size: int  # the number of ranks in the group
    num_calls: int
    num_bytes: int  # payload: the size of the whole tensor gathered, reduced, scattered or sent
    sent_bytes: int  # sent by each rank, in a ring

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        return self._asdict()


Held = Iterable[tuple[str, torch.Tensor]]
"""Pairs of a category of an estimate and a tensor."""


class RankTracker(StorageTracker):
    """A storage tracker that also tracks communication.

    Args:
        modules: the running modules of the step.
        uneven: registers the DTensors that the step uses.
        axis_of: returns the mesh axis that a process group lies along, and the group's size.
        mailbox: the point-to-point messages of the rank.
        commands: records the commands on streams.
        has_workspace: as for any storage tracker.
        held: returns the tensors that exist before a step besides those of the module and the
            optimizer, as pairs of category and tensor.
    """

    def __init__(
        self,
        modules: RunningModules,
        uneven: UnevenShards,
        axis_of: Callable[[Any], tuple[str, int]],
        mailbox: Mailbox,
        commands: timing.CommandRecorder | None = None,
        *,
        has_workspace: bool = False,
        held: Callable[[], Held] = list,
    ) -> None:
        super().__init__(modules, commands, has_workspace=has_workspace)
        self._held = held
        self.uneven = uneven
        self._axis_of = axis_of
        self._mailbox = mailbox
        self.exchanges = Exchanges(commands, self._place, self.number_of)
        self._traffic: dict[tuple[str, str, str, int], list[int]] = {}
        self._roles: dict[int, str] = {}  # id of a lifetime -> UNSHARDED or COMMUNICATION

    def call_operator(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(map(_is_foreign, types)):
            self.uneven.register((*args, *kwargs.values()))
            return run_on_shards(partial(self._call, run), func, args, kwargs)
        return self._call(run, func, types, args, kwargs)

    def _call(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        message = message_of(func, args, kwargs, lambda group: self._axis_of(group)[1])
        result = super().call_operator(run, func, types, args, kwargs)
        if message is not None:
            self._count(message)
            axis, size = self._axis_of(message.group)
            sent = timing.Message(message.collective, message.num_bytes, axis, size)
            peer = peer_of(func, args) if traits_of(func).packet in _POINT_TO_POINT else None
            if peer is not None:
                self._exchange(sent, peer, message.group, args)
            elif self.commands is not None:
                self.commands.send(sent, self._place())
            self._set_role(COMMUNICATION, (args, kwargs, result))
        elif traits_of(func).packet == _COPY_OUT:
            self._set_role(UNSHARDED, kwargs["out"])
        return result

    def _exchange(self, message: timing.Message, peer: int, group: Any, args: Any) -> None:
        """Send a message to one other rank, or receive a message from it."""
        is_sent, own = message.collective == "send", self._mailbox.rank
        tag = next(value for value in reversed(args) if type(value) is int)
        for tensor in args[0]:
            if isinstance(tensor, FakeTensor):
                (self._mailbox.send if is_sent else self._mailbox.receive)(tensor, peer, tag)
        ends = (own, peer) if is_sent else (peer, own)
        self.exchanges.add(
            message._replace(group_size=2, ends=ends, tag=tag), process_group_of(group).group_name
        )

    def _count(self, message: Message) -> None:
        axis, size = self._axis_of(message.group)
        key = self.phase, message.collective, axis, size
        totals = self._traffic.setdefault(key, [0, 0, 0])
        for i, number in enumerate((1, message.num_bytes, message.sent_bytes(size))):
            totals[i] += number

    def _set_role(self, role: str, tensors: Any) -> None:
        """Set the role of the storages of tensors that have no role yet."""
        if isinstance(tensors, FakeTensor):
            known = self.allocation_of(storage_of(tensors))
            if known is not None:
                self._roles.setdefault(id(known.note), role)
        elif isinstance(tensors, (list, tuple)):
            for tensor in tensors:
                self._set_role(role, tensor)
        elif isinstance(tensors, dict):
            self._set_role(role, list(tensors.values()))

    def storage_resized(self, storage: Storage) -> None:
        """Record that FSDP has resized a storage, to allocate or free an unsharded parameter."""
        super().storage_resized(storage)
        known = self.allocation_of(storage)
        if known is not None:
            self._roles[id(known.note)] = UNSHARDED

    def active(self) -> observing:
        self.register_held(self._held())
        return super().active()

    def register_held(self, held: Held) -> None:
        """Record tensors under the given categories, unless they have a category already."""
        for category, tensor in held:
            self.register([("", tensor)], category)

    def register(self, tensors: Iterable[tuple[str, torch.Tensor]], category: str) -> None:
        super().register(_local(tensors), category)

    def recategorize(self, tensors: Iterable[tuple[str, torch.Tensor]], category: str) -> None:
        super().recategorize(_local(tensors), category)

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """The messages that were sent, in the order of the phases."""
        return tuple(Traffic(*key, *totals) for key, totals in self._traffic.items())

    def finish(self) -> Lifetimes:
        """Stop tracking, and return the lifetimes; those with a role have it as their category."""
        lives = super().finish()
        of_step: list[Lifetime] = [life for life in self.lives if life.allocated_at < self.end]
        category = lives.category.copy()
        for row, life in enumerate(of_step):
            role = self._roles.get(id(life))
            if role is not None and CATEGORIES[category[row]] in _REPLACED_BY[role]:
                category[row] = CATEGORIES.index(role)
        return lives._replace(category=category)


def _is_foreign(cls: type) -> bool:
    """Whether tensors of a class are neither fake nor plain, such as DTensors."""
    return not issubclass(cls, (FakeTensor, torch.nn.Parameter)) and cls is not torch.Tensor


def _local(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterable[tuple[str, torch.Tensor]]:
    """The fakes among tensors, and the shards of DTensors."""
    for module, tensor in tensors:
        for local in leaf_tensors(tensor):
            if isinstance(local, FakeTensor):
                yield module, local
