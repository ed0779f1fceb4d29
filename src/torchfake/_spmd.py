"""Collectives on deferred tensors.

Enters: a collective. Leaves: what it would give, from the record of this rank. Invariant: nothing
is sent. Ranks that shard a deferred module have recorded the same program, which
:mod:`torchfake._ranks` makes sure of before any value is made. So what another rank would send is
what this one has, or another part of it.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake import _private_distributed as _private
from torchfake._call import Args
from torchfake.errors import RecordError


def copies_of(name: str, args: Args) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Targets and sources of the copies that a collective comes to on this rank.

    Raises:
        RecordError: if it needs values that only other ranks will have.
    """
    if name == "c10d::broadcast_":
        return []  # all have what the one has that sends
    if name == "c10d::scatter_":
        outputs, inputs, group = args[:3]
        parts = inputs[0] if inputs else _private.list_of_mesh_scatter()
        if parts is not None:
            part = parts[_private.rank_in(group)]
            is_split = part.is_complex() and not outputs[0].is_complex()
            return [(outputs[0], torch.view_as_real(part) if is_split else part)]
        raise RecordError(
            "torch.distributed.scatter of deferred tensors: this rank does not have what the other "
            "one sends. Shard with distribute_tensor, or take this rank's part of its own tensor"
        )
    raise RecordError(
        f"{name} was called with deferred tensors, and needs the values of other ranks, which are "
        "not there yet: do this after materialize_module"
    )


def result_of(args: Args) -> Any:
    """What the operator returns to C++: its outputs, and work that is done."""
    return args[0], _private.finished_work()
