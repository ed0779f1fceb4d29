"""The private APIs of torch.distributed, as we call them: a torch that changed fails here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake import _private_distributed as private


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    yield init_device_mesh("cpu", (4,))
    dist.destroy_process_group()


def test_torch_distributed_is_not_imported_for_us() -> None:
    program = (
        "import sys, torch, torchfake; torchfake.deferred_init(torch.nn.Linear, 2, 2);"
        "assert 'torch.distributed.tensor' not in sys.modules;"
        "assert torchfake._private_distributed.dtensor_class() == ()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_shards(mesh: DeviceMesh) -> None:
    whole = torch.arange(8.0)
    dtensor = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    assert private.dtensor_class() is DTensor
    assert torch.equal(private.shard_of(dtensor), whole[4:6])
    assert private.shard_of(dtensor) is private.shard_of(dtensor)


def test_wrappers(mesh: DeviceMesh) -> None:
    dtensor: Any = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)], src_data_rank=None)
    dtensor._local_tensor = private.shard_of(dtensor).to(torch.float64)
    made: Any = private.new_wrapper(dtensor)
    assert (made.dtype, made.shape, made.placements) == (torch.float64, (8,), dtensor.placements)
    private.take_spec(dtensor, made)
    assert dtensor._spec.tensor_meta.dtype == torch.float64


def test_fsdp_looks_again(mesh: DeviceMesh) -> None:
    module: Any = fully_shard(nn.Linear(8, 8), mesh=mesh)
    shard = torch.full((2, 8), 7.0)
    module.weight._local_tensor = shard
    private.reset_shards(module)
    found = [p._sharded_param_data for p in private._fsdp_params(module._get_fsdp_state())]
    assert shard.data_ptr() in [flat.data_ptr() for flat in found]
    private.reset_shards(nn.Linear(2, 2))  # no FSDP: nothing


def test_collectives(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.distributed.Work.wait
    work = private.finished_work()
    assert "Work" in str(work)
    assert private.list_of_mesh_scatter() is None
    seen: list[Any] = []

    def scatter(output: Any, scatter_list: Any = None, **_: Any) -> None:
        seen.append((scatter_list, private.list_of_mesh_scatter()))

    monkeypatch.setattr("torch.distributed.tensor._collective_utils.scatter", scatter)
    distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    ((given, found),) = seen
    assert given is None  # rank 2 is not the one that sends
    assert torch.equal(found[2], torch.tensor([4.0, 5.0]))
    ranks: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.namespace == "c10d":
                ranks.append(private.rank_in(args[1]))
            return func(*args, **(kwargs or {}))

    with Watch():
        dist.broadcast(torch.ones(1), src=0)
    assert ranks == [2]


def test_nobody_answers_on_the_fake_group(mesh: DeviceMesh) -> None:
    assert not private.can_exchange(mesh)


def test_names_of_placements() -> None:
    assert Shard(0).dim == 0
    assert not hasattr(Replicate(), "dim")
