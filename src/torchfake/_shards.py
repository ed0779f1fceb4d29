"""Sharded parameters, whose shards become real.

Enters: DTensors of deferred fakes. Leaves: the same objects, DTensors of real shards. Invariant: a
shard has memory of its own, no more than it is large, whatever it was cut from; and a DTensor says
of itself what its shard is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchfake import _private
from torchfake import _private_distributed as _distributed
from torchfake._graph import Deferred
from torchfake._materialize import check_no_graph
from torchfake._metadata import Metadata
from torchfake._tensor import FakeTensor
from torchfake.errors import MaterializeError

Named = list[tuple[str, torch.Tensor]]


@contextmanager
def becoming_real(shards: Named, device: torch.device | None = None) -> Iterator[None]:
    """Context in which the shards of these DTensors become real; all the rest of them follows.

    Args:
        shards: names and DTensors of deferred shards.
        device: where their shards will be; None: where they were recorded.

    Raises:
        MaterializeError: if a shard would not be where its mesh is, or a graph holds it. Nothing
            has changed then.
    """
    for name, dtensor in shards:
        _check_device(name, dtensor, device)
        check_no_graph(name, dtensor)
    _give_own_memory([_shard(dtensor) for _, dtensor in shards])
    try:
        yield
    finally:
        for _, dtensor in shards:
            if not isinstance(_shard(dtensor), FakeTensor):
                _wrap_anew(dtensor)


def check_is_whole(name: str, tensor: torch.Tensor) -> None:
    """Refuse a DTensor that is to be deferred again."""
    if isinstance(tensor, _distributed.dtensor_class()):
        raise MaterializeError(
            f"{name} is sharded, and a shard cannot be deferred again: leave it out with check_fn, "
            "or build and shard the module anew"
        )


def _shard(dtensor: torch.Tensor) -> torch.Tensor:
    return _distributed.shard_of(dtensor)


def _check_device(name: str, dtensor: Any, device: torch.device | None) -> None:
    mesh = dtensor.device_mesh.device_type
    if device is not None and device.type not in (mesh, "cpu"):
        raise MaterializeError(
            f"{name} is sharded over a mesh of {mesh} devices, and cannot be on {device}: leave "
            f"device= out, or shard over a mesh of {device.type} devices"
        )


def _give_own_memory(fakes: list[Any]) -> None:
    """Record a copy of those that look at a small part of their storage: a shard that was only
    split off would keep the memory of the whole. Those that are the same memory stay so.
    """
    copies: dict[tuple[Deferred, Metadata], torch.Tensor] = {}
    with torch.no_grad():
        for fake in fakes:
            recorded, record = fake._fake_storage.recorded, fake._fake_meta
            if recorded.real is None and 2 * record.num_bytes <= recorded.contents.cell.num_bytes:
                place = recorded, record
                if place not in copies:
                    copies[place] = fake.detach().clone()
                    copies[place]._fake_storage.recorded.contents.op.is_sharding = True  # type: ignore[attr-defined]
                fake.data = copies[place]


def _wrap_anew(dtensor: torch.Tensor) -> None:
    """Give a DTensor the device and dtype of its shard, in place."""
    wrapper = _distributed.new_wrapper(dtensor)
    wrapper.__dict__.update(dtensor.__dict__)
    wrapper.grad = dtensor.grad
    _private.move_hooks(dtensor, wrapper)
    _private.swap(dtensor, wrapper)
    _distributed.take_spec(dtensor, wrapper)


def tell_fsdp(module: torch.nn.Module) -> None:
    """Have FSDP2 take note of the memory that its shards have by now."""
    for submodule in module.modules():
        _distributed.reset_shards(submodule)
