"""Collectives on deferred tensors, as copies on this rank.

Input: a collective operation. Output: the copies that it amounts to on this rank, which are
recorded in its place. Invariant: nothing is sent. Ranks that shard a deferred module have recorded
the same operations, which :mod:`torchfake._sharding.rank_agreement` checks before any value is
computed. So what another rank would send is what this rank has, or another part of it.
Called by: ``_recording/record``.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._operators.operator_call import Args
from torchfake._torch import distributed
from torchfake.errors import RecordError


def local_copies(name: str, args: Args) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Targets and sources of the copies on this rank that have the effect of a collective.

    Raises:
        RecordError: if it needs values that only other ranks will have.
    """
    if name == "c10d::broadcast_":
        return []  # all ranks have what the sender has
    if name == "c10d::scatter_":
        outputs, inputs, group = args[:3]
        slices = inputs[0] if inputs else distributed.mesh_scatter_list()
        if slices is not None:
            own = slices[distributed.rank_in(group)]
            is_split = own.is_complex() and not outputs[0].is_complex()
            return [(outputs[0], torch.view_as_real(own) if is_split else own)]
        raise RecordError(
            "torch.distributed.scatter of deferred tensors: this rank does not have what the other "
            "one sends. Shard with distribute_tensor, or take this rank's part of its own tensor"
        )
    raise RecordError(
        f"{name} was called with deferred tensors, and needs the values of other ranks, which do "
        "not exist yet: do this after materialize_module"
    )


def result_of_collective(args: Args) -> Any:
    """What the operator returns to C++: its outputs, and completed work."""
    return args[0], distributed.completed_work()
