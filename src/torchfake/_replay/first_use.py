"""The entry to the replay for files that every program imports.

Input: a deferred state, or a draw. Output: the values that ``_replay/replay`` computes. Invariant:
the replay is imported by the first request, since few programs replay anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torchfake._core.metadata import Metadata
    from torchfake._graph.deferred_storage import DeferredState
    from torchfake._graph.operations import Op


def value_of(deferred: DeferredState, record: Metadata) -> torch.Tensor:
    """The real tensor with metadata `record` on a deferred storage. Callers must not write it."""
    from torchfake._replay import replay

    return replay.value_of(deferred, record)


def make_real(deferred: DeferredState) -> torch.UntypedStorage:
    """The real memory of a deferred storage, which is computed if there is none yet."""
    from torchfake._replay import replay

    return replay.make_real(deferred)


def run_draws(op: Op) -> None:
    """Execute `op`, whose draws cannot be counted, to find the position at which they end."""
    from torchfake._replay import replay

    replay.run_draws(op)
