"""Column shards, materialized from rows that ranks exchange, batch by batch.

Input: the exchanges, and the operations that read their values. Output: the shards, materialized.
Invariant: an error on one rank is raised on all ranks of its process group, so that none waits for
it; the record is unchanged afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchfake._graph.operations import Op
from torchfake._sharding import row_exchange
from torchfake._sharding.row_exchange import Exchange
from torchfake._torch.distributed import dtensors
from torchfake.errors import ReplayError

Place = tuple[Op, int]


def materialize_exchanged(
    exchanges: list[Exchange],
    places: dict[str, Place | None],
    install: Callable[[list[Exchange]], None],
) -> None:
    """Exchange the values of each batch, and call `install`, which replays the batch's shards while
    the operations at `places` (see :func:`row_exchange.first_copy`) read the exchanged values.
    """
    pending, scratch = list(row_exchange.batches(exchanges)), row_exchange.Scratch()
    while pending:
        try:
            drawn = row_exchange.draw_rows(pending[0], scratch)
        except BaseException as error:
            _tell(pending, f"{type(error).__name__}: {error}")
            raise
        group = pending[0][0].group
        messages = dtensors.gather_in_group(None, group)
        failed = [text for text in messages if text is not None]
        if failed:
            _tell([b for b in pending if b[0].group is not group], failed[0])
            raise ReplayError(f"another rank failed and sent no rows: {failed[0]}")
        values = row_exchange.exchange(pending[0], drawn)
        batch, pending = pending[0], pending[1:]
        try:
            _install(batch, values, places, install)
        except BaseException as error:
            _tell(pending, f"{type(error).__name__}: {error}")
            raise


def _tell(pending: list[list[Exchange]], message: str) -> None:
    """Send an error message to the ranks of all groups with pending exchanges."""
    for group in {id(batch[0].group): batch[0].group for batch in pending}.values():
        dtensors.gather_in_group(message, group)


def _install(
    batch: list[Exchange],
    values: list[torch.Tensor],
    places: dict[str, Place | None],
    install: Callable[[list[Exchange]], None],
) -> None:
    changed: list[Callable[[], None]] = []
    try:
        for each, shard in zip(batch, values, strict=True):
            place = places[each.name]
            if place is not None:
                changed.append(row_exchange.give(*place, shard))
        install(batch)
    finally:
        for undo in reversed(changed):
            undo()
