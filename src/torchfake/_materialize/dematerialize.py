"""Real tensors made deferred again, in place, which frees their memory.

Input: real tensors that were materialized. Output: the same objects, deferred, with the record that
they were made from. Invariant: another materialization gives bit-identical values.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, NamedTuple

import torch

from torchfake._core import memory
from torchfake._core.metadata import metadata_of
from torchfake._core.storage import Storage
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.externals import MAX_EXTERNAL_BYTES, External
from torchfake._graph.operations import Cell, Contents, dependencies
from torchfake._replay import replay
from torchfake._sharding.local_tensors import NamedTensors
from torchfake._tensor.classes import fake_class, real_memory_of
from torchfake._tensor.fake_tensor import FakeTensor, new_fake
from torchfake._torch import autograd, subclass
from torchfake._torch.distributed import dtensors
from torchfake.errors import ChangedValueError, MaterializeError


def dematerialize(tensors: NamedTensors) -> None:
    """Make the real tensors in `tensors` deferred again, if this is possible for all of them.

    Raises:
        ChangedValueError: naming the tensor that holds other values than were recorded.
        MaterializeError: naming the tensor that is sharded, or that a graph holds.
    """
    parts = [pair for name, tensor in tensors for pair in _parts(name, tensor)]
    real = [pair for pair in parts if not isinstance(pair[1], FakeTensor)]
    for name, tensor in real:
        _check_not_sharded(name, tensor)
        _check_can_be_deferred(name, tensor)
        _check_unchanged(name, tensor)
    storages: dict[int, Storage] = {}
    for _, fake in parts:  # those that are still deferred may share the memory of the real ones
        memory = real_memory_of(fake._fake_storage) if isinstance(fake, FakeTensor) else None
        if memory is not None:
            source = _sources.get(subclass.storage_key(memory))
            storages[id(source)] = fake._fake_storage  # type: ignore[attr-defined]
    for _, tensor in real:
        _make_deferred(tensor, storages)


def _parts(name: str, tensor: torch.Tensor) -> NamedTensors:
    """The inner tensors of a wrapper, which are deferred in its place; other tensors themselves."""
    if dtensors.is_dtensor(tensor):
        return [(name, tensor)]
    return list(subclass.named_leaves(name, tensor))


# The records of real storages.


class Source(NamedTuple):
    """The recorded contents that a real storage was made from."""

    storage: weakref.ref[torch.UntypedStorage]
    contents: Contents
    mark: int


_sources: dict[int, Source] = {}
"""By the address of the storage, as long as the storage lives."""


def remember_source(storage: torch.UntypedStorage, contents: Contents, mark: int) -> None:
    """Keep the contents that `storage` was made from while it lives, unless they are large."""
    num_bytes = 0
    for op in dependencies([contents.op]):
        for external in op.arguments_of(External):
            num_bytes += external.num_bytes
    if num_bytes > MAX_EXTERNAL_BYTES:
        return
    key = subclass.storage_key(storage)
    gone = weakref.ref(storage, partial(_sources.pop, key))  # in C: nothing interrupts it
    _sources[key] = Source(gone, contents, mark)


def _source_of(real: torch.Tensor) -> Source | None:
    return _sources.get(subclass.storage_key(real.untyped_storage()))


def _equals_source(real: torch.Tensor, source: Source) -> bool:
    """Whether the storage of `real` equals a replay of its record, bit for bit."""
    equal: list[bool] = []

    def compare(_: Contents, made: torch.UntypedStorage) -> None:
        both = real.untyped_storage(), made
        own, again = (memory.flat_view(s, torch.uint8).cpu() for s in both)
        equal.append(torch.equal(own, again))

    if source.contents.op is None:
        return False  # recorded as unwritten memory: its values were written later
    replay.replay([source.contents], compare)
    return equal[0]


# Tensors that cannot be deferred again.


def _check_not_sharded(name: str, tensor: torch.Tensor) -> None:
    if dtensors.is_dtensor(tensor):
        raise MaterializeError(
            f"{name} is sharded, and a shard cannot be deferred again: leave it out with check_fn, "
            "or build and shard the module anew"
        )


def _check_can_be_deferred(name: str, real: torch.Tensor) -> None:
    """Refuse a tensor that has a gradient, or that a graph holds."""
    if real.grad is not None:
        raise ChangedValueError(
            f"{name} has a gradient, which would be lost: zero_grad() first, or leave it out with "
            "check_fn"
        )
    if autograd.is_in_live_graph(real):
        raise MaterializeError(
            f"{name} cannot become fake in place: the graph of a forward pass holds it. Delete the "
            "outputs of that pass"
        )


def _check_unchanged(name: str, tensor: torch.Tensor) -> None:
    source = _source_of(tensor)
    if source is None:
        raise ChangedValueError(
            f"{name} has no record of how it was made: it was never deferred, was given other "
            "memory since, or was loaded from real tensors. Leave it out with check_fn"
        )
    if not _equals_source(tensor, source):
        raise ChangedValueError(
            f"{name} was changed since it was materialized: its values cannot be recovered. "
            "Save them first (state_dict()), or leave it out with check_fn"
        )


# The exchange.


def _make_deferred(tensor: torch.Tensor, storages: dict[int, Storage]) -> None:
    """Make a real tensor deferred; tensors that shared a storage share one again."""
    source: Any = _source_of(tensor)
    storage = storages.get(id(source))
    if storage is None:
        cell: Cell = source.contents.cell
        storage = storages[id(source)] = Storage(cell.num_bytes, cell.device)
    if storage.deferred is None or real_memory_of(storage) is not None:
        storage.deferred = DeferredState(source.contents.cell, source.contents.op, source.mark)
    _exchange(tensor, storage)


def _exchange(real: torch.Tensor, storage: Storage) -> None:
    """Make a real tensor a fake on `storage` again, in place."""
    record = metadata_of(real, storage.device)
    fake = new_fake(record, storage, fake_class(type(real)))
    subclass.all_attributes(fake).update(real.__dict__)
    fake.requires_grad_(real.requires_grad)
    version = autograd.version_of(real)
    if version is not None and autograd.version_of(fake) is not None:
        autograd.set_version(fake, version)
    subclass.move_hooks(real, fake)
    subclass.swap_tensors(real, fake)
