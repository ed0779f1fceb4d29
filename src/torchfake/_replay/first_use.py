"""Requests for contents, from files that every program imports: few programs replay anything.

Input: a deferred state, or a draw. Output: the values that ``_replay/replay`` computes. Invariant:
the replay is imported by the first request, which takes as long as a tenth of importing torchfake.
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
