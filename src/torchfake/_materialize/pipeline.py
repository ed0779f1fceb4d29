"""The steps of one materialization, in order: check, read, compare ranks, prepare, replay, install.

Input: a :class:`~torchfake._materialize.collect.Selection`, and a :class:`Request`. Output: the
tensors of the selection, real. Invariant: no tensor changes until all checks have passed on all
ranks, except that attributes computed from parameters lose their histories before the check whether
another graph holds them or the parameters. After a failure of the replay, each tensor is real or
deferred, and the call can be repeated; a cast or a value of a checkpoint stays recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from torchfake._files import assign
from torchfake._files.load import Entry, Source
from torchfake._materialize import prepare, wrappers
from torchfake._materialize.checks import (
    NamedFakes,
    check_can_be_exchanged,
    check_kinds,
    warn_of_left,
)
from torchfake._materialize.collect import Selection, meshes_of
from torchfake._materialize.from_rank import Delivery
from torchfake._materialize.progress import progress_bar
from torchfake._materialize.replay_and_install import replay_and_install
from torchfake._sharding import row_exchange
from torchfake._sharding.exchange_batches import materialize_exchanged
from torchfake._sharding.local_tensors import NamedTensors
from torchfake._sharding.rank_agreement import check_agreement
from torchfake._sharding.sent_targets import targets_of
from torchfake._torch.contexts import shared
from torchfake._torch.distributed import dtensors
from torchfake._torch.distributed.source_group import source_group

lock = shared(threading.RLock(), for_whole_calls=True)
"""Held by the public functions while they collect and run, so that two threads do not materialize
one module twice.
"""


class Request(NamedTuple):
    """The arguments of a user; see :func:`torchfake.materialize_module`."""

    device: torch.device | None = None  # None: where tensors were recorded
    dtype: torch.dtype | None = None
    checkpoint: Source | None = None
    strict: bool = True
    num_threads: int | None = None
    progress: bool | None = False
    exchange: bool = False  # rows between ranks that hold columns
    keep: bool = False  # intermediate results, for later replays
    from_rank: int | None = None  # the rank that has the values for all others
    group: Any = None  # of these ranks; None: all of the process group


def run(selection: Selection, request: Request, module: torch.nn.Module | None = None) -> None:
    """Materialize a selection; :data:`lock` has been held since it was collected.

    Args:
        selection: the tensors.
        request: the user's arguments.
        module: the module that a checkpoint is for, and whose meshes exchange rows.

    Raises:
        NotDeferredError, MaterializeError, CheckpointError, RankMismatchError: before anything has
            changed.
        ReplayError: if a recorded operation cannot be replayed.
    """
    group = None
    if request.from_rank is not None:
        group = source_group(request.group, request.from_rank)
    if group is None:
        _run(selection, request, module, None)
    else:
        with Delivery(group) as delivery:
            _run(selection, request, module, delivery)


def _run(
    selection: Selection,
    request: Request,
    module: torch.nn.Module | None,
    delivery: Delivery | None,
) -> None:
    fakes, shards, wrapped = check_kinds(selection)
    if shards or wrapped:
        wrappers.check_placement(shards, request.device)
        wrappers.check_others(wrapped, request.device, request.dtype)
    computed = prepare.computed_by_hooks(selection.attributes)
    in_histories = prepare.ids_in_histories(selection.attributes)
    others = [pair for pair in fakes if id(pair[1]) not in in_histories]
    check_can_be_exchanged(others, device=request.device)
    values: list[assign.Value] = []
    if delivery is not None:
        assert module is not None
        targets = targets_of(selection.tensors, module, request.dtype)
        delivery.agree(targets, fakes, _entries(delivery, selection, request, module))
    elif request.checkpoint is not None:
        assert module is not None
        values = assign.values_for(module, request.checkpoint, selection.ids, strict=request.strict)
    exchanges: Sequence[row_exchange.Exchange] = ()
    real = _real_shards(selection, shards)
    if delivery is None and (shards or real or request.exchange):
        exchanges = _agreed_exchanges(shards, real, values, request, module)
    if in_histories:
        prepare.release_histories(selection.attributes)
        released = [pair for pair in fakes if id(pair[1]) in in_histories]
        check_can_be_exchanged(released, device=request.device)
    uncast: set[int] = set()
    if request.dtype is not None:  # which module.to gives to parameters and buffers alone
        uncast = {id(each.fake) for each in selection.attributes} - selection.ids
    if shards or wrapped:
        prepare.give_own_memory(shards)
        with wrappers.updated_afterwards(shards + wrapped):
            uncast |= wrappers.ids_inside(wrapped)
            _prepare_and_replay(fakes, values, request, uncast, exchanges, delivery)
    else:
        _prepare_and_replay(fakes, values, request, uncast, delivery=delivery)
    prepare.compute_again(computed)
    if selection.left:
        warn_of_left(selection.left)
    for managed in selection.fsdp_modules:
        dtensors.refresh_fsdp_shards(managed)


def _entries(
    delivery: Delivery, selection: Selection, request: Request, module: torch.nn.Module
) -> dict[int, Entry]:
    """What is sent of the checkpoint, which the source alone reads."""
    if request.checkpoint is None or not delivery.is_source:
        return {}
    return assign.entries_for(module, request.checkpoint, selection.ids, strict=request.strict)


def _real_shards(selection: Selection, deferred: NamedTensors) -> NamedTensors:
    """The DTensors of a selection that are real on this rank, and perhaps not on others."""
    shards = [(name, t) for name, t in selection.tensors if dtensors.is_dtensor(t)]
    if not shards:
        return shards
    ids = {id(tensor) for _, tensor in deferred}
    return [(name, t) for name, t in shards if id(t) not in ids]


def _agreed_exchanges(
    shards: NamedTensors,
    real: NamedTensors,
    values: list[assign.Value],
    request: Request,
    module: torch.nn.Module | None,
) -> list[row_exchange.Exchange]:
    """The exchanges of rows that the request wants, once all ranks agree on their records."""
    given = {id(value.target) for value in values}
    replayed = [pair for pair in shards if id(pair[1]) not in given]
    exchanges: list[row_exchange.Exchange] = []
    if request.exchange:
        found = [row_exchange.exchange_of(name, dtensor) for name, dtensor in replayed]
        exchanges = [each for each in found if each is not None]
    check_agreement(
        replayed,
        real=[pair for pair in real if id(pair[1]) not in given],
        exchanged={each.name for each in exchanges},
        meshes=meshes_of(module) if request.exchange and module is not None else (),
    )
    return exchanges


def _prepare_and_replay(
    fakes: NamedFakes,
    values: list[assign.Value],
    request: Request,
    uncast: Collection[int] = (),
    exchanges: Sequence[row_exchange.Exchange] = (),
    delivery: Delivery | None = None,
) -> None:
    """Record casts and the values of a checkpoint, then replay all of `fakes`.

    Args:
        fakes: by name.
        values: from a checkpoint.
        request: the user's arguments.
        uncast: identities of the fakes that keep their dtype.
        exchanges: of rows, with other ranks.
        delivery: of values, by one rank.
    """
    places = {each.name: row_exchange.first_copy(each) for each in exchanges}
    if request.dtype is not None:
        prepare.cast((fake for _, fake in fakes if id(fake) not in uncast), request.dtype)
    if values:
        assign.copy(values, request.device)
    num_bytes = sum(fake._fake_meta.num_bytes for _, fake in fakes)
    with progress_bar(num_bytes, request.progress) as advance:
        materialize_some = partial(
            replay_and_install,
            device=request.device,
            keep=request.keep,
            advance=advance,
            num_threads=request.num_threads,
        )
        if exchanges:
            install = partial(_install, fakes, materialize_some)
            materialize_exchanged(list(exchanges), places, install)
        if delivery is not None:
            delivery.run(request.device, materialize_some)
        materialize_some(fakes)


def _install(
    fakes: NamedFakes,
    materialize_some: Callable[[NamedFakes], None],
    batch: list[row_exchange.Exchange],
) -> None:
    """Materialize the shards of a batch of exchanges, whose rows have arrived."""
    shards = {id(dtensors.shard_of(each.dtensor)) for each in batch}
    materialize_some([pair for pair in fakes if id(pair[1]) in shards])
