"""The steps of one materialization, in order: check, read, compare ranks, prepare, replay, install.

Input: a :class:`~torchfake._materialize.collect.Selection`, and what the user asked for. Output:
the tensors of the selection, real. Invariant: until all checks have passed, on all ranks, no tensor
has changed; but for attributes that were computed from parameters: whether another graph holds
these too is found out when the attributes have let go of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import torch

from torchfake._files import assign
from torchfake._files.load import Source
from torchfake._materialize import prepare, wrappers
from torchfake._materialize.checks import NamedFakes, check_can_be_exchanged, check_kinds
from torchfake._materialize.collect import Selection, meshes_of
from torchfake._materialize.materialize import materialize
from torchfake._materialize.progress import progress_bar
from torchfake._sharding import row_exchange
from torchfake._sharding.exchange_batches import materialize_exchanged
from torchfake._sharding.local_tensors import NamedTensors
from torchfake._sharding.rank_agreement import check_agreement
from torchfake._torch import distributed

lock = threading.RLock()
"""Held by the public functions while they collect and run: two materializations of one module must
not materialize it twice.
"""


class Request(NamedTuple):
    """What a user asked for; see :func:`torchfake.materialize_module`."""

    device: torch.device | None = None  # None: where tensors were recorded
    dtype: torch.dtype | None = None
    checkpoint: Source | None = None
    strict: bool = True
    num_threads: int | None = None
    progress: bool | None = False
    exchange: bool = False  # rows, between ranks that have columns
    keep: bool = False  # what is computed on the way, for later replays


def run(selection: Selection, request: Request, module: torch.nn.Module | None = None) -> None:
    """Materialize what was collected while :data:`lock` was held.

    Args:
        selection: of the tensors.
        request: how.
        module: whose names a checkpoint has, and whose ranks exchange rows.

    Raises:
        NotDeferredError, MaterializeError, CheckpointError, RankMismatchError: before anything has
            changed.
        ReplayError: if what was recorded cannot be done.
    """
    fakes, shards, wrapped = check_kinds(selection)
    if shards or wrapped:
        wrappers.check_placement(shards, request.device)
        wrappers.check_others(wrapped, request.device, request.dtype)
    in_histories = prepare.ids_in_histories(selection.attributes)
    others = [pair for pair in fakes if id(pair[1]) not in in_histories]
    check_can_be_exchanged(others, device=request.device)
    values: list[assign.Value] = []
    if request.checkpoint is not None:
        assert module is not None
        values = assign.values_for(module, request.checkpoint, selection.ids, strict=request.strict)
    exchanges: Sequence[row_exchange.Exchange] = ()
    if shards or request.exchange:
        exchanges = _agreed_exchanges(shards, values, request, module)
    if in_histories:
        prepare.release_histories(selection.attributes)
        released = [pair for pair in fakes if id(pair[1]) in in_histories]
        check_can_be_exchanged(released, device=request.device)
    if shards or wrapped:
        prepare.give_own_memory(shards)
        with wrappers.updated_afterwards(shards + wrapped):
            _materialize(fakes, values, request, wrappers.ids_inside(wrapped), exchanges)
    else:
        _materialize(fakes, values, request)
    for managed in selection.fsdp_modules:
        distributed.refresh_fsdp_shards(managed)


def _agreed_exchanges(
    shards: NamedTensors,
    values: list[assign.Value],
    request: Request,
    module: torch.nn.Module | None,
) -> list[row_exchange.Exchange]:
    """The exchanges of rows, if there are to be any, when all ranks have recorded the same."""
    given = {id(value.target) for value in values}
    replayed = [pair for pair in shards if id(pair[1]) not in given]
    exchanges: list[row_exchange.Exchange] = []
    if request.exchange:
        found = [row_exchange.exchange_of(name, dtensor) for name, dtensor in replayed]
        exchanges = [each for each in found if each is not None]
    check_agreement(
        replayed,
        exchanged={each.name for each in exchanges},
        meshes=meshes_of(module) if request.exchange and module is not None else (),
    )
    return exchanges


def _materialize(
    fakes: NamedFakes,
    values: list[assign.Value],
    request: Request,
    uncast: Collection[int] = (),
    exchanges: Sequence[row_exchange.Exchange] = (),
) -> None:
    """Record casts and the values of a checkpoint, then replay all of `fakes`.

    Args:
        fakes: by name.
        values: from a checkpoint.
        request: how.
        uncast: identities of those that keep their dtype.
        exchanges: of rows, with other ranks.
    """
    places = {each.name: row_exchange.first_copy(each) for each in exchanges}
    if request.dtype is not None:
        prepare.cast((fake for _, fake in fakes if id(fake) not in uncast), request.dtype)
    if values:
        assign.copy(values, request.device)
    num_bytes = sum(fake._fake_meta.num_bytes for _, fake in fakes)
    with progress_bar(num_bytes, request.progress) as advance:
        materialize_some = partial(
            materialize,
            device=request.device,
            keep=request.keep,
            advance=advance,
            num_threads=request.num_threads,
        )
        if exchanges:
            install = partial(_install, fakes, materialize_some)
            materialize_exchanged(list(exchanges), places, install)
        materialize_some(fakes)


def _install(
    fakes: NamedFakes,
    materialize_some: Callable[[NamedFakes], None],
    batch: list[row_exchange.Exchange],
) -> None:
    """Materialize the shards of a batch, whose rows are there."""
    shards = {id(distributed.shard_of(each.dtensor)) for each in batch}
    materialize_some([pair for pair in fakes if id(pair[1]) in shards])
