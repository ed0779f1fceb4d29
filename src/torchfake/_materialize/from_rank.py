"""Tensors materialized from the values of one rank.

Input: the tensors of a module, deferred on some ranks, and the rank that has their values: real, in
its record, or in its checkpoint. Output: the same tensors on every rank, with these values.
Invariant: the source holds one full tensor at a time beside its own shards, or small ones of
:data:`~torchfake._sharding.one_source.BATCH_BYTES` together, and another rank nothing but its own
shards; an error on one rank is raised on all of them, before they would wait for it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from torchfake._core import memory
from torchfake._files import assign
from torchfake._files.load import Entry
from torchfake._graph.operations import Contents
from torchfake._materialize.checks import NamedFakes
from torchfake._replay import replay
from torchfake._sharding import one_source
from torchfake._sharding.local_slices import LocalSlices, whole
from torchfake._sharding.one_source import ByName, Described, Sent
from torchfake._sharding.provenance import FullTensor, copy_of, full_tensor
from torchfake._sharding.sent_targets import Target
from torchfake._tensor.fake_tensor import is_deferred_fake
from torchfake._torch import autograd, dispatcher
from torchfake._torch.distributed import dtensors
from torchfake._torch.distributed.source_group import SourceGroup
from torchfake.errors import CheckpointError, MaterializeError, RankMismatchError

MaterializeSome = Callable[[NamedFakes], None]


class Delivery:
    """The values that one rank sends in one materialization: a context, in which an error on this
    rank is told to the others, and theirs is raised.
    """

    def __init__(self, group: SourceGroup) -> None:
        self._group = group
        self._can_meet = True  # the others will come to meet this rank
        self._targets: dict[str, Target] = {}
        self._entries: Mapping[int, Entry] = {}  # of a checkpoint, by the target's identity
        self._sources: dict[str, FullTensor] = {}
        self._unknown: dict[str, str] = {}  # why the source has no values, by name
        self._by_rank: dict[int, ByName] = {}  # on the source
        self._sent: list[Sent] = []
        self._own: dict[str, torch.Tensor] = {}  # memory for the source's shards

    @property
    def is_source(self) -> bool:
        return self._group.is_source

    def __enter__(self) -> Delivery:
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        if error is None:
            self._meet(None)
        elif self._can_meet:
            with contextlib.suppress(Exception):  # the group is broken: the error says more
                self._meet(f"{type(error).__name__}: {error}")

    def _meet(self, message: str | None) -> None:
        """Raise what another rank has failed with; unless this one has failed itself."""
        self._can_meet = False
        found = self._group.gather((self._group.source, message))
        if message is not None:
            return
        for rank, (source, text) in found.items():
            if text is not None:
                raise MaterializeError(f"rank {rank} failed, so nothing more is sent: {text}")
            if source != self._group.source:
                raise RankMismatchError(
                    f"from_rank is {self._group.source} here, and {source} on rank {rank}"
                )
        self._can_meet = True

    # Before anything is changed.

    def agree(
        self,
        targets: dict[str, Target],
        fakes: NamedFakes,
        entries: Mapping[int, Entry],
    ) -> None:
        """Agree with the other ranks on what is sent.

        Args:
            targets: of this rank.
            fakes: the deferred tensors among them, by name.
            entries: of a checkpoint, for the source.

        Raises:
            RankMismatchError: on all ranks, if something does not fit.
        """
        self._targets, self._entries = targets, entries
        if self.is_source:
            self._check_all_are_given()
            self._find_sources()
        else:
            self._check_all_are_sent(fakes)
        self._meet(None)
        self._can_meet = False
        own = {name: target.described for name, target in targets.items()}
        self._by_rank = self._group.gather_to_source(own)
        sent, problem = self._group.from_source(self._planned() if self.is_source else None)
        if problem is not None:
            raise RankMismatchError(problem)
        self._sent = sent
        self._can_meet = True

    def _planned(self) -> tuple[list[Sent], str | None]:
        given = [name for name, t in self._targets.items() if id(t.tensor) in self._entries]
        try:
            sent = one_source.planned(self._by_rank, self._group.source, given, self._unknown)
        except RankMismatchError as error:
            return [], str(error)
        return sent, None

    def _check_all_are_given(self) -> None:
        if set(self._entries) - {id(target.tensor) for target in self._targets.values()}:
            raise CheckpointError(
                "the checkpoint has values for what is no plain tensor in the module: load it on "
                "all ranks, without from_rank="
            )

    def _check_all_are_sent(self, fakes: NamedFakes) -> None:
        known = {id(target.local) for target in self._targets.values()}
        for name, fake in fakes:
            if id(fake) not in known and not torch.nn.parameter.is_lazy(fake):
                raise MaterializeError(
                    f"{name} is in a place where from_rank= does not look for tensors: register it "
                    "as a buffer"
                )

    def _find_sources(self) -> None:
        """Find out where the values are of tensors that are sharded on the source."""
        for name, target in self._targets.items():
            if target.described.ranges is None or id(target.tensor) in self._entries:
                continue
            full = full_tensor(target.tensor)
            if full is not None:
                self._sources[name] = full
            else:
                self._unknown[name] = _why_unknown(name, target, self._group.source)

    # After that.

    def run(self, device: torch.device | None, materialize_some: MaterializeSome) -> None:
        """Send all values, and give this rank's to its tensors, which are materialized.

        Args:
            device: where they will be; None: where they were recorded.
            materialize_some: materializes deferred fakes.
        """
        if self.is_source:
            self._allocate_own()
        uses = Counter(id(_storage_of(target)) for target in self._targets.values())
        for batch in one_source.batches(self._sent):
            with dispatcher.as_eager():
                held = self._prepared(batch, materialize_some)
            self._meet(None)
            self._can_meet = False
            with dispatcher.as_eager():
                values = [self._transferred(*pair) for pair in zip(batch, held, strict=True)]
            self._can_meet = True
            del held
            fakes: NamedFakes = []
            for sent in batch:
                value = values.pop(0)
                if value is None:
                    continue
                target = self._targets[sent.name]
                owns = uses[id(_storage_of(target))] == 1
                to, value = _without_repeats(target.tensor, value)
                assign.give(to, value, device, owns_storage=owns, is_new=True)
                if is_deferred_fake(target.local):
                    fakes.append((sent.name, target.local))  # type: ignore[arg-type]
            materialize_some(fakes)

    def _allocate_own(self) -> None:
        """Memory for the source's own shards, before there is any full tensor: between those, it
        would divide the heap.
        """
        for sent in self._sent:
            target = self._targets[sent.name]
            if sent.name in self._sources or id(target.tensor) in self._entries:
                with dispatcher.as_eager():
                    self._own[sent.name] = _empty_like(target.local)

    def _prepared(self, batch: list[Sent], materialize_some: MaterializeSome) -> list[_Held]:
        """Memory for what this rank gives its own tensors, and on the source the full tensors."""
        if not self.is_source:
            return [self._memory_for(sent) for sent in batch]
        targets = {sent.name: self._targets[sent.name] for sent in batch}
        sources = {n: self._sources[n] for n in targets if n in self._sources}
        given = {n: e for n, t in targets.items() if (e := self._entries.get(id(t.tensor)))}
        wholes = [(n, t.local) for n, t in targets.items() if n not in sources and n not in given]
        materialize_some([pair for pair in wholes if is_deferred_fake(pair[1])])  # type: ignore[misc]
        full = {name: local.detach() for name, local in wholes}
        full |= {name: _read(entry) for name, entry in given.items()} | _replayed(sources)
        return [_Held(full[name], self._own.pop(name, None)) for name in targets]

    def _memory_for(self, sent: Sent) -> _Held:
        target = self._targets.get(sent.name)
        if target is None or not (sent.to_all or sent.is_for(target.described)):
            return _Held(None, None)
        num_bytes = target.local.numel() * target.local.dtype.itemsize
        return _Held(None, torch.empty(num_bytes, dtype=torch.uint8, device=self._group.device))

    def _transferred(self, sent: Sent, held: _Held) -> torch.Tensor | None:
        """What this rank gives to its own tensor; None: that has its values, or gets none."""
        full, own = held
        if full is not None:
            target = self._targets[sent.name]
            self._send(sent, full, target)
            return None if own is None else own.copy_(_part(full, target.described))
        if own is None:
            return None
        if sent.to_all:
            self._group.broadcast(own)
        elif own.numel():
            self._group.receive(own)
        local = self._targets[sent.name].local
        return own.view(local.dtype).view(local.shape)

    def _send(self, sent: Sent, full: torch.Tensor, target: Target) -> None:
        dtype, device = target.local.dtype, self._group.device
        if sent.to_all:
            self._group.broadcast(_bytes_of(full, dtype, device))
            return
        to = one_source.receivers(self._by_rank, sent, self._group.source)
        for rank, described in to.items():
            part = _bytes_of(_part(full, described), dtype, device)
            if part.numel():
                self._group.send(part, rank)


class _Held(NamedTuple):
    """What a rank holds of a tensor while it is sent."""

    full: torch.Tensor | None  # on the source
    own: torch.Tensor | None  # memory for what it gives its own tensor: bytes, where it receives


def _empty_like(local: torch.Tensor) -> torch.Tensor:
    device = memory.replay_device(local.device)
    return torch.empty(local.shape, dtype=local.dtype, device=device)


def _why_unknown(name: str, target: Target, source: int) -> str:
    if not target.local.numel():
        return (
            f"rank {source} has no part of {name}, so its values are not known there: let another "
            "rank send, or pass checkpoint= on that rank"
        )
    if not target.described.is_deferred:
        return (
            f"{name} is real and sharded on rank {source}, which no longer has the values of other "
            "shards: shard the module while it is deferred, and pass its state dict as checkpoint= "
            "on that rank"
        )
    return (
        f"{name} was changed on rank {source} after it was sharded, so the values of other shards "
        "are not known: change it before, or pass checkpoint= on that rank"
    )


def _without_repeats(tensor: Any, value: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Each element in memory once: an expanded tensor cannot be written."""
    if dtensors.is_dtensor(tensor):
        return tensor, value
    with autograd.no_grad():
        for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if step == 0 and size > 1:
                tensor, value = tensor.narrow(dim, 0, 1), value.narrow(dim, 0, 1).contiguous()
    return tensor, value


def _storage_of(target: Target) -> Any:
    return getattr(target.local, "_fake_storage", target.local)


def _part(full: torch.Tensor, described: Described) -> torch.Tensor:
    """What a rank has of a full tensor."""
    if described.ranges is None:
        return full
    return LocalSlices(tuple(full.shape), described.ranges).slice_of(full)


def _bytes_of(tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return memory.bytes_of(tensor.detach().to(device, dtype))


def _read(entry: Entry) -> torch.Tensor:
    read = entry.read_slices
    return entry.read() if read is None else read(whole(entry.shape))


def _replayed(sources: dict[str, FullTensor]) -> dict[str, torch.Tensor]:
    """The full tensors, by name: copies, as an operation that another of them depends on may write
    to one; of a single tensor its own memory, if that is no larger.
    """
    wanted = {name: copy_of(*source) for name, source in sources.items()}
    for name, source in sources.items():
        if len(sources) == 1 and memory.covers(source.record, source.contents.cell.num_bytes):
            wanted[name] = source
    names = {full.contents: name for name, full in wanted.items()}
    found: dict[str, torch.Tensor] = {}

    def deliver(contents: Contents, storage: torch.UntypedStorage) -> None:
        name = names[contents]
        found[name] = memory.view_of(storage, wanted[name].record)

    replay.replay(names, deliver)
    return found
