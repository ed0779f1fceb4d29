"""A process group in which one rank has values for the others.

Input: a process group or a device mesh, and the rank that has the values. Output: messages and
bytes, sent between them. Invariant: bytes are on the device with which the group communicates, so
gloo and NCCL are used by the same calls; all ranks of the group call the same methods in the same
order, but for :meth:`SourceGroup.send` and :meth:`SourceGroup.receive`, which pair two of them.
"""

from __future__ import annotations

from typing import Any

import torch


class SourceGroup:
    """A group and its source, by their global ranks."""

    def __init__(self, group: Any, source: int) -> None:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        self._group = group
        self.source = source
        self.rank: int = dist.get_rank()
        self.ranks: list[int] = dist.get_process_group_ranks(group)
        # As torch chooses it to send objects, in torch 2.12 to 2.15.
        self.device = torch.device(distributed_c10d._get_object_coll_device(group))

    @property
    def is_source(self) -> bool:
        return self.rank == self.source

    def gather(self, value: Any) -> dict[int, Any]:
        """The `value` of each rank, by rank, on all ranks."""
        import torch.distributed as dist

        values: list[Any] = [None] * len(self.ranks)
        dist.all_gather_object(values, value, group=self._group)
        return dict(zip(self.ranks, values, strict=True))

    def gather_to_source(self, value: Any) -> dict[int, Any]:
        """The `value` of each rank, by rank, on the source; nothing on the others."""
        import torch.distributed as dist

        values: list[Any] | None = [None] * len(self.ranks) if self.is_source else None
        dist.gather_object(value, values, dst=self.source, group=self._group)
        return {} if values is None else dict(zip(self.ranks, values, strict=True))

    def from_source(self, value: Any) -> Any:
        """The `value` of the source."""
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, src=self.source, group=self._group)
        return values[0]

    def broadcast(self, data: torch.Tensor) -> None:
        """Send bytes of the source to all others, or receive them."""
        import torch.distributed as dist

        dist.broadcast(data, src=self.source, group=self._group)

    def send(self, data: torch.Tensor, rank: int) -> None:
        """Send bytes to one rank."""
        import torch.distributed as dist

        dist.send(data, dst=rank, group=self._group)

    def receive(self, data: torch.Tensor) -> None:
        """Receive bytes that the source sends to this rank."""
        import torch.distributed as dist

        dist.recv(data, src=self.source, group=self._group)


def source_group(given: Any, source: int) -> SourceGroup | None:
    """The group of the ranks that `source` has values for; None if it has no other ranks, or if
    they are simulated.

    Args:
        given: a process group, a mesh with one axis or with all ranks, or None for all ranks.
        source: a global rank.

    Raises:
        ValueError: if `source`, or this rank, is not in it, or a mesh has no group of its ranks.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        _check_is_in(source, [0])
        return None
    group = _group_of(given)
    ranks = dist.get_process_group_ranks(group)
    _check_is_in(source, ranks)
    if dist.get_rank() not in ranks:
        raise ValueError(f"rank {dist.get_rank()} is not in the group, of ranks {ranks}")
    if len(ranks) == 1 or dist.get_backend(group) == "fake":
        return None
    return SourceGroup(group, source)


def _check_is_in(source: int, ranks: list[int]) -> None:
    if source not in ranks:
        raise ValueError(f"from_rank is {source}, and the ranks that take part are {ranks}")


def _group_of(given: Any) -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    if given is None:
        return dist.group.WORLD
    if not isinstance(given, DeviceMesh):
        if not isinstance(given, dist.ProcessGroup):
            raise TypeError(f"group is a {type(given).__name__}: give a process group or a mesh")
        return given
    if given.ndim == 1:
        return given.get_group()
    if given.size() == dist.get_world_size():
        return dist.group.WORLD
    raise ValueError(
        f"group is a mesh with {given.ndim} axes and some of the ranks, which has no process group "
        "of its own: give torch.distributed.new_group(ranks)"
    )
