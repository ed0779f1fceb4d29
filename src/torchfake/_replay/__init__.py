"""Replay of recorded operations: deferred contents are materialized as real storages.

Input: contents that are requested. Output: real storages with the bits of eager construction.
Invariant: operations and generators that exist are not changed; memory in addition to the results
is bounded; any number of threads gives the same bits.

The pipeline: the operations that the contents depend on are restricted to the elements that are
demanded, fused into groups that can be computed tile by tile, and run by threads as their
dependencies allow. Files in reading order:

    replay           the entry: requests contents, delivers storages; small replays run sequentially
    demand_analysis  which elements of each cell have to be computed
    slicing          operations rewritten to the demanded elements
    tiling           which operations can be computed tile by tile
    tile_kernels     how each operator is computed on a tile, and whether the bits are the same
    schedule         tasks: fused groups and single operations, with their dependencies
    work_queue       which tasks can begin, within a limit of memory
    workers          the threads that run them
    tile_loop        a range of a fused group, computed tile by tile
    execute          a single operation, executed on real tensors

The functions of this file are for those that each program imports, of which few replay anything:
the first call imports the rest, which takes as long as a tenth of importing torchfake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torchfake._core.metadata import Metadata
    from torchfake._graph.deferred_storage import DeferredState
    from torchfake._graph.operations import Op


def value_of(deferred: DeferredState, record: Metadata) -> torch.Tensor:
    """The real tensor that a fake of `record` on that storage stands for; not to be written."""
    from torchfake._replay import replay

    return replay.value_of(deferred, record)


def make_real(deferred: DeferredState) -> torch.UntypedStorage:
    """The memory of a deferred storage, which is computed if there is none yet."""
    from torchfake._replay import replay

    return replay.make_real(deferred)


def run_draws(op: Op) -> None:
    """Execute `op`, whose draws cannot be counted, so that it is known where they end."""
    from torchfake._replay import replay

    replay.run_draws(op)
