"""FSDP2 on a deferred module: sharding is recorded, and making DTensors real is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake import deferred_init, errors, is_deferred, materialize_module, materialize_tensor


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Rank 1 of 2, alone: collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def sharded(module: nn.Module, mesh: DeviceMesh) -> Any:
    for layer in module.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


def test_shards(mesh: DeviceMesh) -> None:
    """Uneven ones: each is recorded down to the draw, and has the bits of eager's."""
    torch.manual_seed(0)
    eager = sharded(build(), mesh)
    torch.manual_seed(0)
    module = sharded(deferred_init(build), mesh)
    assert is_deferred(module)
    assert is_deferred(module[0].weight)
    with pytest.raises(errors.MaterializeError, match=r"^0\.weight is a DTensor of a deferred"):
        materialize_module(module)
    for expected, made in zip(eager.parameters(), module.parameters(), strict=True):
        local = materialize_tensor(made.to_local().detach())
        assert torch.equal(local, expected.to_local())
