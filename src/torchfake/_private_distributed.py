"""Every private API of torch.distributed this project leans on, one function each.

Enters: plain arguments. Leaves: what torch answers. Invariant: torch.distributed is not imported
before somebody else has; tests/distributed/test_private.py calls each function here, so a torch
that changed fails there first. Checked on torch 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch


def dtensor_class() -> Any:
    """``DTensor``, if the process has imported it; what tests an instance else finds none."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else module.DTensor


def shard_of(dtensor: Any) -> torch.Tensor:
    """What a DTensor holds. ``to_local()`` gives a view of it, which is another object."""
    shard: torch.Tensor = dtensor._local_tensor
    return shard


def reset_shards(module: torch.nn.Module) -> None:
    """Have FSDP2 look again at the shards that it keeps of `module`, as ``module.to()`` does.

    It pads, pins and remembers their memory when it shards, and when their memory has changed.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(module, fsdp.FSDPModule):
        return
    with torch.no_grad():
        for param in _fsdp_params(module._get_fsdp_state()):
            param.reset_sharded_param()


def _fsdp_params(state: Any) -> Iterator[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch 2.11
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    for group in groups:
        yield from group.fsdp_params


def finished_work() -> Any:
    """What a collective gives that need not be waited for."""
    return torch._C._distributed_c10d.FakeWork().boxed()


def rank_in(group: Any) -> int:
    """The rank of this process in a process group, as operators are given it."""
    unboxed: Any = torch._C._distributed_c10d.ProcessGroup.unbox(group)
    rank: int = unboxed.rank()
    return rank


def list_of_mesh_scatter() -> list[torch.Tensor] | None:
    """What ``distribute_tensor`` has split, where it scatters that right now.

    Every rank splits its own tensor, and all but one throw the parts away for those that they get.
    Of what is not there yet there is nothing to get, and the parts are the same.
    """
    module = sys.modules.get("torch.distributed.tensor._collective_utils")
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and module is not None:
        if frame.f_code is module.mesh_scatter.__code__:
            found: list[torch.Tensor] = frame.f_locals["scatter_list"]
            return found
        frame = frame.f_back
    return None


def new_wrapper(dtensor: Any) -> torch.Tensor:
    """A DTensor as `dtensor` is, made anew for what it holds by now: its device and dtype."""
    shard = dtensor._local_tensor
    spec = dtensor._spec
    if spec.tensor_meta.dtype != shard.dtype:
        meta = spec.tensor_meta._replace(dtype=shard.dtype)
        spec = dataclasses.replace(spec, tensor_meta=meta)
    kind: Any = type(dtensor)
    made: torch.Tensor = kind(shard, spec, requires_grad=dtensor.requires_grad)
    return made


def take_spec(dtensor: Any, other: Any) -> None:
    """Let `dtensor` say of itself what `other` says: that is not exchanged with what they are."""
    dtensor._spec = other._spec


def can_exchange(mesh: Any) -> bool:
    """Whether there are other ranks in `mesh`, that answer."""
    import torch.distributed as dist

    if mesh.size() == 1 or mesh.get_coordinate() is None:
        return False
    return all(dist.get_backend(group) != "fake" for group in mesh.get_all_groups())


def exchange(mesh: Any, value: Any) -> dict[int, Any]:
    """The `value` of each rank of `mesh`, by its global rank. All of them must call this."""
    import torch.distributed as dist

    known = {dist.get_rank(): value}
    for group in mesh.get_all_groups():  # along one axis after the other
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, known, group=group)
        known = {rank: item for each in gathered for rank, item in each.items()}
    return known
