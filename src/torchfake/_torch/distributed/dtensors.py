"""DTensor, FSDP2, device meshes and process groups.

Input: tensors, modules, meshes, process groups. Output: local shards and how they were split;
values of other ranks. Invariant: whether something is a DTensor or sharded by FSDP2 is answered
without an import of either; values are exchanged only by functions that all ranks have to call.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from torchfake._torch import autograd
from torchfake._torch.contexts import Restoring
from torchfake._torch.private_facts import PrivateFact

materialized: Any = WeakIdKeyDictionary()
"""The DTensors that were deferred once."""


def dtensor_class() -> Any:
    """``DTensor`` if the process has imported it; else ``()``, of which nothing is an instance."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else module.DTensor


def shard_of(dtensor: Any) -> torch.Tensor:
    """The shard of a DTensor: the object itself, of which ``to_local()`` makes a view."""
    shard: torch.Tensor = dtensor._local_tensor
    return shard


def is_dtensor(value: Any) -> bool:
    """Whether `value` is a DTensor."""
    return isinstance(value, dtensor_class())


def local_tensor_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on this rank: the shard of a DTensor, any other tensor itself."""
    return shard_of(tensor) if is_dtensor(tensor) else tensor


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor. C++ reports the carrier device for a DTensor of a fake."""
    return local_tensor_of(tensor).device


def is_fsdp_module(module: torch.nn.Module) -> bool:
    """Whether FSDP2 has sharded `module`."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def refresh_fsdp_shards(module: torch.nn.Module) -> None:
    """Have FSDP2 read the shards of `module` again, as ``module.to()`` does.

    When it shards a module, it pads and pins the memory of the shards and caches it; that has to
    be repeated when their memory has changed.
    """
    if not is_fsdp_module(module):
        return
    with autograd.no_grad():
        state: Any = module._get_fsdp_state()  # type: ignore[operator]
        for group in state._fsdp_param_groups:
            for param in group.fsdp_params:
                param.reset_sharded_param()


def completed_work() -> Any:
    """The ``Work`` of a collective that is complete: waiting for it returns at once."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(None)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(future).boxed()


def rank_in(group: Any) -> int:
    """The rank of this process in a process group: see :func:`process_group_of`."""
    rank: int = process_group_of(group).rank()
    return rank


def mesh_scatter_list() -> list[torch.Tensor] | None:
    """The parts into which ``distribute_tensor`` has split a tensor that it is scattering now.

    Every rank splits its own tensor; all but one discard the parts for those that they receive.
    Of a deferred tensor there are no values to receive, and the parts of all ranks are equal.
    """
    frame = _running("mesh_scatter") if COLLECTIVES.holds() else None
    return None if frame is None else frame.f_locals["scatter_list"]


def is_broadcast_to_mesh() -> bool:
    """Whether ``distribute_tensor`` is replicating a tensor now."""
    return COLLECTIVES.holds() and _running("mesh_broadcast") is not None


def _have_their_names() -> bool:
    from torch.distributed.tensor import _collective_utils as utils

    return (
        callable(utils.mesh_broadcast) and "scatter_list" in utils.mesh_scatter.__code__.co_varnames
    )


COLLECTIVES = PrivateFact(
    "distribute_tensor calls mesh_scatter, with a local variable scatter_list, and mesh_broadcast",
    used_in="_torch/distributed/dtensors",
    without="Sharding a deferred tensor raises RecordError: materialize it first",
    is_shortcut=False,
    check=_have_their_names,
)


def _running(name: str) -> types.FrameType | None:
    """The frame of the collective function `name` of DTensor, if it is running on this thread."""
    module = sys.modules.get("torch.distributed.tensor._collective_utils")
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and module is not None:
        if frame.f_code is getattr(module, name).__code__:
            return frame
        frame = frame.f_back
    return None


def rewrapped(dtensor: Any) -> torch.Tensor:
    """A new DTensor with the shard of `dtensor`, of the device and dtype that the shard has now."""
    shard = dtensor._local_tensor
    spec = dtensor._spec
    if spec.tensor_meta.dtype != shard.dtype:
        meta = spec.tensor_meta._replace(dtype=shard.dtype)
        spec = dataclasses.replace(spec, tensor_meta=meta)
    cls: Any = type(dtensor)
    wrapper: torch.Tensor = cls(shard, spec, requires_grad=dtensor.requires_grad)
    return wrapper


def set_spec_from(dtensor: Any, other: Any) -> None:
    """Give `dtensor` the spec of `other`: swapping tensor objects does not swap the specs."""
    dtensor._spec = other._spec


def can_communicate(mesh: Any) -> bool:
    """Whether `mesh` has other ranks that can be communicated with."""
    import torch.distributed as dist

    if mesh.size() == 1 or mesh.get_coordinate() is None:
        return False
    return all(dist.get_backend(group) != "fake" for group in mesh.get_all_groups())


def gather_over_mesh(mesh: Any, value: Any) -> dict[int, Any]:
    """The `value` of each rank of `mesh`, by global rank. All ranks of the mesh must call this."""
    import torch.distributed as dist

    by_rank = {dist.get_rank(): value}
    for group in mesh.get_all_groups():  # along one axis after the other
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, by_rank, group=group)
        by_rank = {rank: item for each in gathered for rank, item in each.items()}
    return by_rank


class AxisSplit(NamedTuple):
    """How one axis of a mesh shards a tensor."""

    dim: int
    num_shards: int
    coordinate: int  # of this rank along the axis
    split_factor: int  # FSDP2 after tensor parallelism: the shards of the other axis; else 1


def axis_splits_of(dtensor: Any) -> list[AxisSplit] | None:
    """How each axis of its mesh shards a DTensor; None if this rank is not in the mesh."""
    mesh = dtensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    axes = zip(dtensor.placements, mesh.shape, coordinate, strict=True)
    return [
        AxisSplit(placement.dim, size, index, int(getattr(placement, "split_factor", 1)))
        for placement, size, index in axes
        if hasattr(placement, "dim")
    ]


def is_partial_sum(dtensor: Any) -> bool:
    """Whether the values of a DTensor are a sum over ranks that is not reduced yet."""
    return any(placement.is_partial() for placement in dtensor.placements)


def is_first_replica(dtensor: Any) -> bool:
    """Whether this rank is the first of the ranks that hold its shard."""
    coordinate = dtensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    axes = zip(dtensor.placements, coordinate, strict=True)
    return all(index == 0 for placement, index in axes if not hasattr(placement, "dim"))


def resharded_as(dtensor: Any, other: Any) -> torch.Tensor:
    """The shard of `dtensor` on this rank if it had the placements of `other`, on the same mesh."""
    if dtensor.placements != other.placements:
        dtensor = dtensor.redistribute(placements=other.placements)
    return shard_of(dtensor.detach())


def rank_and_world_size() -> tuple[int, int]:
    """The rank of this process, and the number of ranks; 0 and 1 without a process group."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def has_simulated_ranks() -> bool:
    """Whether the other ranks are simulated (by the ``fake`` backend)."""
    import torch.distributed as dist

    return dist.is_initialized() and dist.get_world_size() > 1 and dist.get_backend() == "fake"


def broadcast_from_first(value: Any) -> Any:
    """The `value` of rank 0. All ranks must call this."""
    import torch.distributed as dist

    if rank_and_world_size()[1] == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def gather_from_ranks(value: Any) -> list[Any]:
    """The `value` of each rank, in rank order. All ranks must call this."""
    import torch.distributed as dist

    _, world = rank_and_world_size()
    if world == 1:
        return [value]
    values: list[Any] = [None] * world
    dist.all_gather_object(values, value)
    return values


class isolated_dtensor_state(Restoring):
    """Context: DTensor has a new tracker of random offsets, and empty caches of sharding
    propagation. Afterwards the previous tracker is restored, and the caches are cleared again.

    Both belong to one rank: local shapes are cached by global shapes, and a mesh is equal on all
    of its ranks.
    """

    _before: tuple[Any] | None = None

    def change(self) -> None:
        from torch.distributed.tensor import _random

        self._before = (_random._rng_tracker,)
        _clear_sharding_caches()
        _random._rng_tracker = None

    def restore(self) -> None:
        from torch.distributed.tensor import _random

        if self._before is not None:
            _random._rng_tracker = self._before[0]
            _clear_sharding_caches()


def _clear_sharding_caches() -> None:
    from torch.distributed.tensor import _redistribute, debug

    debug._clear_sharding_prop_cache()
    cached = _redistribute._gen_transform_infos
    getattr(cached, "cache_clear", lambda: None)()


def process_group_of(given: Any) -> Any:
    """The process group that an operator was given: as an object, boxed, or by name."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if isinstance(given, str):
        resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
        return resolve(given)
    return given if isinstance(given, dist.ProcessGroup) else dist.ProcessGroup.unbox(given)


def axis_that_shards(dtensor: Any, dim: int) -> tuple[int | None, int]:
    """The axis of the mesh that shards `dim`, and its size. The axis is None if it splits shards of
    another axis, or if the ranks of its group are in another order.
    """
    mesh = dtensor.device_mesh
    for axis, placement in enumerate(dtensor.placements):
        if getattr(placement, "dim", None) in (dim, dim - dtensor.dim()) and mesh.size(axis) > 1:
            is_plain = int(getattr(placement, "split_factor", 1)) == 1
            is_ordered = bool((mesh.mesh.diff(dim=axis) > 0).all())
            return (axis if is_plain and is_ordered else None), mesh.size(axis)
    return None, 1


def all_to_all_bytes(
    sent: torch.Tensor, sizes: list[int], received: list[int], group: Any, device_type: str
) -> torch.Tensor:
    """Send each rank of `group` its part of `sent`; return the received parts, in rank order."""
    import torch.distributed as dist

    sent = sent.to(device_type)
    found = torch.empty(sum(received), dtype=torch.uint8, device=sent.device)
    dist.all_to_all_single(found, sent, received, sizes, group=group)
    return found.cpu()


def gather_in_group(value: Any, group: Any) -> list[Any]:
    """The `value` of each rank of a process group. All of them must call this."""
    import torch.distributed as dist

    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group=group)
    return gathered


def peer_of(func: Any, args: Any) -> int | None:
    """The global rank that a point-to-point operator sends to or receives from; None if it receives
    from any rank.
    """
    import torch.distributed as dist

    names = [argument.name for argument in func._schema.arguments]
    position = next((names.index(name) for name in ("dst", "src") if name in names), None)
    if position is None:
        return None
    group = next(args[names.index(n)] for n in ("process_group", "group_name") if n in names)
    return dist.get_global_rank(process_group_of(group), args[position])
