"""Collectives on deferred tensors: recorded as copies on this rank, or run on real values.

Input: a collective operation. Output: copies on this rank with the effect of the collective, which
are recorded in its place; or, on materialized tensors, the result of running it. Invariant: torch's
sharding functions send nothing. Ranks that shard a deferred module have recorded the same
operations (:mod:`torchfake._sharding.rank_agreement` checks that before any value is computed), so
this rank can compute whatever another rank would send. A broadcast that the program itself calls
is sent, since the ranks may have different values.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core.schemas import traits_of
from torchfake._operators.handlers.collectives import flattened
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._recording.arguments import deferred_fakes, is_materialized, with_real_tensors
from torchfake._recording.value_reads import materialize_storages
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatcher, subclass
from torchfake._torch.distributed import dtensors
from torchfake.errors import RecordError


def run_on_real_values(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a collective on real tensors and return its result; None if a tensor stays deferred.

    A broadcast that the program calls materializes its deferred tensors. Any other collective runs
    only if all of its tensors are materialized.
    """
    fakes = deferred_fakes(flattened([*args, *kwargs.values()]))
    is_broadcast = traits_of(func).packet == "c10d::broadcast_"
    if is_broadcast and not dtensors.is_broadcast_to_mesh():
        materialize_storages(fakes)
    if not all(map(is_materialized, fakes)):
        return None
    with dispatcher.as_eager():
        result = func(*map(with_real_tensors, args), **with_real_tensors(kwargs))
    if is_broadcast:
        for fake in fakes:
            _become_real(fake)
    return result


def _become_real(fake: FakeTensor) -> None:
    """Swap a broadcast fake for its real tensor, unless the fake has attributes or requires grad.
    The program may next pass it in a list to C++, which does not dispatch on fakes in lists.
    """
    if type(fake) is FakeTensor and not vars(fake) and not fake.requires_grad:
        real: Any = with_real_tensors(fake)
        subclass.swap_tensors(fake, real)


def local_copies(name: str, args: Args) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Targets and sources of the copies on this rank that have the effect of a collective.

    Raises:
        RecordError: if the collective needs values that only other ranks will have.
    """
    if name == "c10d::broadcast_":
        return []  # all ranks have what the sender has
    if name == "c10d::scatter_":
        outputs, inputs, group = args[:3]
        slices = inputs[0] if inputs else dtensors.mesh_scatter_list()
        if slices is not None:
            own = slices[dtensors.rank_in(group)]
            is_split = own.is_complex() and not outputs[0].is_complex()
            return [(outputs[0], torch.view_as_real(own) if is_split else own)]
        raise RecordError(
            "torch.distributed.scatter of deferred tensors: this rank does not have what the other "
            "one sends. Shard with distribute_tensor, or take this rank's part of its own tensor; "
            "or call materialize_module first"
        )
    raise RecordError(
        f"{name} was called with deferred tensors, and needs the values of other ranks, which do "
        "not exist yet: do this after materialize_module"
    )


def result_of_collective(args: Args) -> Any:
    """The value that the operator returns to C++: its outputs, and completed work."""
    return args[0], dtensors.completed_work()
