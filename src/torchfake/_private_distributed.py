"""Every private API of torch.distributed this project leans on, one function each.

Enters: plain arguments. Leaves: what torch answers. Invariant: torch.distributed is not imported
before somebody else has; tests/distributed/test_private_distributed.py calls each function, so a
torch that changed fails there first. Checked on torch 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch


def dtensor_class() -> Any:
    """``DTensor``, if the process has imported it; what tests an instance else finds none."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else module.DTensor


def shard_of(dtensor: Any) -> torch.Tensor:
    """What a DTensor holds. ``to_local()`` gives a view of it, which is another object."""
    shard: torch.Tensor = dtensor._local_tensor
    return shard


def held_by(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor is on this rank: of a DTensor, its shard."""
    return shard_of(tensor) if isinstance(tensor, dtensor_class()) else tensor


def device_of(tensor: torch.Tensor) -> torch.device:
    """Where a tensor is. C++ gives a DTensor of a fake the device that wrappers carry."""
    return held_by(tensor).device


def is_fsdp(module: torch.nn.Module) -> bool:
    """Whether FSDP2 has sharded `module`."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def reset_shards(module: torch.nn.Module) -> None:
    """Have FSDP2 look again at the shards that it keeps of `module`, as ``module.to()`` does.

    It pads, pins and remembers their memory when it shards, and when their memory has changed.
    """
    if not is_fsdp(module):
        return
    with torch.no_grad():
        for param in _fsdp_params(module._get_fsdp_state()):  # type: ignore[operator]
            param.reset_sharded_param()


def _fsdp_params(state: Any) -> Iterator[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch 2.11
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    for group in groups:
        yield from group.fsdp_params


def finished_work() -> Any:
    """What a collective gives that need not be waited for."""
    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result(None)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(done).boxed()


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


class Cut(NamedTuple):
    """What one axis of a mesh does to a tensor."""

    dim: int
    num: int  # of parts
    place: int  # of this rank's
    factor: int  # 1; of FSDP2 after tensor parallelism, how many parts there were before


def cuts_of(dtensor: Any) -> list[Cut] | None:
    """How a DTensor was cut, axis by axis of its mesh; None if this rank has nothing of it."""
    mesh = dtensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    axes = zip(dtensor.placements, mesh.shape, coordinate, strict=True)
    return [
        Cut(placed.dim, num, index, int(getattr(placed, "split_factor", 1)))
        for placed, num, index in axes
        if hasattr(placed, "dim")
    ]


def is_unfinished_sum(dtensor: Any) -> bool:
    """Whether the values of a DTensor are the sum of what its ranks have."""
    return any(placed.is_partial() for placed in dtensor.placements)


def is_first_copy(dtensor: Any) -> bool:
    """Whether this rank is the first of those that have the same shard."""
    coordinate = dtensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    axes = zip(dtensor.placements, coordinate, strict=True)
    return all(index == 0 for placed, index in axes if not hasattr(placed, "dim"))


def shard_as(dtensor: Any, other: Any) -> torch.Tensor:
    """What this rank would have of `dtensor`, if it were sharded as `other`, on the same mesh."""
    if dtensor.placements != other.placements:
        dtensor = dtensor.redistribute(placements=other.placements)
    return shard_of(dtensor.detach())


def rank_and_world() -> tuple[int, int]:
    """The rank of this process and how many there are; one, without a process group."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def is_alone_with_others() -> bool:
    """Whether the other ranks are only imagined."""
    import torch.distributed as dist

    return dist.is_initialized() and dist.get_world_size() > 1 and dist.get_backend() == "fake"


def from_first(value: Any) -> Any:
    """The `value` of rank 0. All ranks must call this."""
    import torch.distributed as dist

    if rank_and_world()[1] == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def from_all(value: Any) -> list[Any]:
    """The `value` of each rank, in their order. All ranks must call this."""
    import torch.distributed as dist

    _, world = rank_and_world()
    if world == 1:
        return [value]
    values: list[Any] = [None] * world
    dist.all_gather_object(values, value)
    return values


@contextlib.contextmanager
def dtensor_state() -> Iterator[None]:
    """Context: DTensor's generator of random offsets is as it was afterwards, and what it remembers
    of operators is forgotten before and after. Both are for one rank: local shapes are remembered
    by the global ones, and a mesh is the same mesh to all its ranks.
    """
    from torch.distributed.tensor import _random

    tracker = _random._rng_tracker
    _forget_propagation()
    _random._rng_tracker = None
    try:
        yield
    finally:
        _random._rng_tracker = tracker
        _forget_propagation()


def _forget_propagation() -> None:
    from torch.distributed.tensor import _redistribute, debug

    debug._clear_sharding_prop_cache()
    planned = _redistribute._gen_transform_infos
    getattr(planned, "cache_clear", lambda: None)()


def group_of(given: Any) -> Any:
    """The process group that an operator was given: as such, in a box, or by its name."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if isinstance(given, str):
        resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
        return resolve(given)
    return given if isinstance(given, dist.ProcessGroup) else dist.ProcessGroup.unbox(given)
