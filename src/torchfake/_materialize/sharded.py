"""DTensors whose shards are materialized: they take over what their shards are by then.

Input: DTensors of deferred shards, by name. Output: the same objects, DTensors of real shards.
Invariant: a DTensor has the device and dtype of its shard, whatever interrupted the
materialization. Called by: ``pipeline``.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._contexts import Restoring
from torchfake._materialize.checks import check_no_graph
from torchfake._materialize.collect import NamedTensors
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import distributed, subclass
from torchfake.errors import MaterializeError


def check_placement(shards: NamedTensors, device: torch.device | None) -> None:
    """Refuse DTensors whose shards would not be where their mesh is, or that a graph holds.

    Args:
        shards: DTensors of deferred shards, by name.
        device: where their shards will be; None: where they were recorded.

    Raises:
        MaterializeError: naming the first.
    """
    for name, dtensor in shards:
        _check_device(name, dtensor, device)
        check_no_graph(name, dtensor)


class updated_afterwards(Restoring):
    """Context in which shards are materialized: their DTensors are updated when it is left."""

    def __init__(self, shards: NamedTensors) -> None:
        self._shards = shards

    def change(self) -> None: ...

    def restore(self) -> None:
        while self._shards:
            _, dtensor = self._shards[-1]
            if not isinstance(distributed.shard_of(dtensor), FakeTensor):
                _update(dtensor)
            self._shards = self._shards[:-1]


def _check_device(name: str, dtensor: Any, device: torch.device | None) -> None:
    mesh = dtensor.device_mesh.device_type
    if device is not None and device.type not in (mesh, "cpu"):
        raise MaterializeError(
            f"{name} is sharded over a mesh of {mesh} devices, and cannot be on {device}: leave "
            f"device= out, or shard over a mesh of {device.type} devices"
        )


def _update(dtensor: torch.Tensor) -> None:
    """Give a DTensor the device and dtype of its shard, in place."""
    wrapper = distributed.rewrapped(dtensor)
    wrapper.__dict__.update(dtensor.__dict__)
    wrapper.grad = dtensor.grad
    subclass.move_hooks(dtensor, wrapper)
    subclass.swap_tensors(dtensor, wrapper)
    distributed.set_spec_from(dtensor, wrapper)
