"""DTensor, FSDP2, device meshes and process groups, on torch's fake process group."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake import deferred_init, fake_like, fake_mode, materialize_module
from torchfake._torch.distributed import dtensors, training


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    yield init_device_mesh("cpu", (4,))
    dist.destroy_process_group()


def test_asking_for_dtensors_does_not_import_them() -> None:
    program = (
        "import sys, torch, torchfake; torchfake.deferred_init(torch.nn.Linear, 2, 2);"
        "assert 'torch.distributed.tensor' not in sys.modules;"
        "assert torchfake._torch.distributed.dtensors.dtensor_class() == ()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_shards(mesh: DeviceMesh) -> None:
    whole = torch.arange(8.0)
    dtensor = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    assert dtensors.dtensor_class() is DTensor
    assert torch.equal(dtensors.shard_of(dtensor), whole[4:6])
    assert dtensors.shard_of(dtensor) is dtensors.shard_of(dtensor)


def test_wrappers(mesh: DeviceMesh) -> None:
    dtensor: Any = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)], src_data_rank=None)
    dtensor._local_tensor = dtensors.shard_of(dtensor).to(torch.float64)
    wrapper: Any = dtensors.rewrapped(dtensor)
    assert (wrapper.dtype, wrapper.shape, wrapper.placements) == (
        torch.float64,
        (8,),
        dtensor.placements,
    )
    dtensors.set_spec_from(dtensor, wrapper)
    assert dtensor._spec.tensor_meta.dtype == torch.float64


def test_fsdp_reads_the_shards_again(mesh: DeviceMesh) -> None:
    module: Any = fully_shard(nn.Linear(8, 8), mesh=mesh)
    shard = torch.full((2, 8), 7.0)
    module.weight._local_tensor = shard
    dtensors.refresh_fsdp_shards(module)
    groups = module._get_fsdp_state()._fsdp_param_groups
    found = [p._sharded_param_data for group in groups for p in group.fsdp_params]
    assert shard.data_ptr() in [flat.data_ptr() for flat in found]
    dtensors.refresh_fsdp_shards(nn.Linear(2, 2))  # not sharded: nothing is done


def test_collectives(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.distributed.Work.wait
    work = dtensors.completed_work()
    assert "Work" in str(work)
    assert dtensors.mesh_scatter_list() is None
    seen: list[Any] = []

    def scatter(output: Any, scatter_list: Any = None, **_: Any) -> None:
        seen.append((scatter_list, dtensors.mesh_scatter_list()))

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
                ranks.append(dtensors.rank_in(args[1]))
            return func(*args, **(kwargs or {}))

    with Watch():
        dist.broadcast(torch.ones(1), src=0)
    assert ranks == [2]


def test_a_broadcast_to_a_mesh_is_recognised(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def broadcast(*args: Any, **kwargs: Any) -> None:
        seen.append(dtensors.is_broadcast_to_mesh())

    monkeypatch.setattr("torch.distributed.tensor._collective_utils.broadcast", broadcast)
    distribute_tensor(torch.arange(8.0), mesh, [Replicate()])
    assert seen == [True]
    assert not dtensors.is_broadcast_to_mesh()


def test_the_fake_group_cannot_communicate(mesh: DeviceMesh) -> None:
    assert not dtensors.can_communicate(mesh)


def test_names_of_placements() -> None:
    assert Shard(0).dim == 0
    assert not hasattr(Replicate(), "dim")


def test_local_tensors(mesh: DeviceMesh) -> None:
    whole = torch.arange(8.0)
    dtensor = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    assert dtensors.is_dtensor(dtensor)
    assert not dtensors.is_dtensor(whole)
    assert dtensors.local_tensor_of(dtensor) is dtensors.shard_of(dtensor)
    assert dtensors.local_tensor_of(whole) is whole
    assert dtensors.device_of(dtensor) == torch.device("cpu")


def test_device_of_a_sharded_fake(mesh: DeviceMesh) -> None:
    dtensor = DTensor.from_local(fake_like(torch.ones(2)), mesh, [Shard(0)], run_check=False)
    assert dtensors.device_of(dtensor) == dtensor.device == torch.device("cpu")


def test_fsdp_modules(mesh: DeviceMesh) -> None:
    module = nn.Linear(8, 8)
    assert not dtensors.is_fsdp_module(module)
    assert dtensors.is_fsdp_module(fully_shard(module, mesh=mesh))


def test_how_axes_split_a_tensor(mesh: DeviceMesh) -> None:
    sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)], src_data_rank=None)
    (split,) = dtensors.axis_splits_of(sharded) or ()
    assert split == dtensors.AxisSplit(dim=0, num_shards=4, coordinate=2, split_factor=1)
    replicated = distribute_tensor(torch.arange(8.0), mesh, [Replicate()], src_data_rank=None)
    assert dtensors.axis_splits_of(replicated) == []
    assert dtensors.is_first_replica(sharded)
    assert not dtensors.is_first_replica(replicated)  # this is rank 2


def test_fsdp_after_tensor_parallelism() -> None:
    """FSDP2 splits what tensor parallelism has split already: the factor says into how many."""
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        module: Any = nn.Linear(8, 8)
        parallelize_module(module, mesh["tp"], ColwiseParallel())
        fully_shard(module, mesh=mesh["dp"])
        assert dtensors.axis_splits_of(module.weight) == [(0, 2, 1, 2), (0, 2, 0, 1)]
    finally:
        dist.destroy_process_group()


def test_partial_sums(mesh: DeviceMesh) -> None:
    partial = DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False)
    assert dtensors.is_partial_sum(partial)
    assert not dtensors.is_partial_sum(DTensor.from_local(torch.ones(2), mesh, [Shard(0)]))


def test_resharded_as(mesh: DeviceMesh) -> None:
    whole = torch.arange(8.0)
    replicated = distribute_tensor(whole, mesh, [Replicate()], src_data_rank=None)
    sharded = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    assert torch.equal(dtensors.resharded_as(replicated, sharded), whole[4:6])
    assert torch.equal(dtensors.resharded_as(sharded, sharded), whole[4:6])


def test_ranks_of_the_fake_group(mesh: DeviceMesh) -> None:
    assert dtensors.rank_and_world_size() == (2, 4)
    assert dtensors.has_simulated_ranks()


def test_without_a_process_group() -> None:
    assert dtensors.rank_and_world_size() == (0, 1)
    assert not dtensors.has_simulated_ranks()
    assert dtensors.broadcast_from_first("value") == "value"
    assert dtensors.gather_from_ranks("value") == ["value"]


def test_values_of_ranks() -> None:
    """With one rank; tests/_sharding has several."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        assert dtensors.gather_over_mesh(mesh, "value") == {0: "value"}
        assert not dtensors.can_communicate(mesh)
        group = dist.group.WORLD
        assert dtensors.process_group_of(group) is group
        assert dtensors.process_group_of(group.group_name) is group  # type: ignore[union-attr]
        assert dtensors.process_group_of(group.boxed()).rank() == 0  # type: ignore[union-attr]
    finally:
        dist.destroy_process_group()


def test_isolated_dtensor_state(mesh: DeviceMesh) -> None:
    from torch.distributed.tensor import _random

    before = _random._rng_tracker
    with dtensors.isolated_dtensor_state():
        assert _random._rng_tracker is None
        _random._rng_tracker = "of this rank"  # type: ignore[assignment]
    assert _random._rng_tracker is before


def test_the_axis_that_shards(mesh: DeviceMesh) -> None:
    whole = torch.arange(32.0).view(4, 8)
    columns = distribute_tensor(whole, mesh, [Shard(1)], src_data_rank=None)
    assert dtensors.axis_that_shards(columns, 1) == (0, 4)
    assert dtensors.axis_that_shards(columns, 0) == (None, 1)
    reverse = DeviceMesh("cpu", [3, 2, 1, 0])
    other = DTensor.from_local(torch.zeros(4, 2), reverse, [Shard(1)], run_check=False)
    assert dtensors.axis_that_shards(other, 1) == (None, 4)


def test_messages_of_one_rank(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        sent = torch.arange(5, dtype=torch.uint8)
        received = dtensors.all_to_all_bytes(sent, [5], [5], dist.group.WORLD, "cpu")
        assert torch.equal(received, sent)
        assert dtensors.gather_in_group({"a": 1}, dist.group.WORLD) == [{"a": 1}]
    finally:
        dist.destroy_process_group()


def test_a_schedule_has_its_stages(mesh: DeviceMesh) -> None:
    device = torch.device("cpu")
    stages = [pipelining.PipelineStage(nn.Linear(2, 2), i, 8, device) for i in (2, 6)]
    assert training.pipeline_stages_of(nn.Linear(2, 2)) is None
    looped = pipelining.ScheduleInterleaved1F1B(stages, 4, loss_fn=nn.functional.mse_loss)  # type: ignore[arg-type]
    assert training.pipeline_stages_of(looped) == stages
    assert training.pipeline_makes_losses(looped)
    single = pipelining.ScheduleGPipe(stages[0], 2)
    assert training.pipeline_stages_of(single) == stages[:1]
    assert not training.pipeline_makes_losses(single)


def test_the_rank_that_a_message_is_for(mesh: DeviceMesh) -> None:
    group: Any = dist.group.WORLD
    args = [torch.zeros(2)], group.boxed(), 3, 7
    assert dtensors.peer_of(torch.ops.c10d.send.default, args) == 3
    assert dtensors.peer_of(torch.ops.c10d.recv_.default, args) == 3
    assert dtensors.peer_of(torch.ops.c10d.recv_any_source_.default, args[:3]) is None


def test_buckets_have_so_many_bytes() -> None:
    """Those of given indices are in the order given; fakes have the sizes that they stand for."""
    with fake_mode():
        tensors = [torch.empty(n, dtype=torch.uint8) for n in (5, 1, 9, 3, 3)]
    assert training.bucket_assignment(tensors, [4, 10], None) == [[0], [1, 2], [3, 4]]
    assert training.bucket_assignment(tensors[::-1], [4, 10], [4, 3, 2, 1, 0]) == [
        [4, 3],
        [2, 1],
        [0],
    ]


def test_the_parts_of_an_optimizer(mesh: DeviceMesh) -> None:
    params = [nn.Parameter(torch.ones(n)) for n in (3, 5, 4, 1, 1)]
    made = training.zero_optimizer_class()(params, optimizer_class=torch.optim.SGD)
    assert training.parts_of_optimizer(torch.optim.SGD(params)) is None
    parts, ranks = training.parts_of_optimizer(made) or ([], [])
    assert ranks == [0, 1, 2, 3]
    assert [[param.numel() for param in part] for part in parts] == [[5], [4], [3], [1, 1]]


def test_tensors_one_after_the_other() -> None:
    tensors = [torch.arange(6.0).view(2, 3), torch.ones(2)]
    flat = training.flattened(tensors)
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 1, 1]
    assert all(map(torch.equal, training.unflattened(flat, tensors), tensors))


def test_accumulators_are_called_once_and_the_end_of_the_pass_after_them() -> None:
    leaf, calls = torch.nn.Parameter(torch.ones(2)), []
    node = training.accumulator_of(leaf)
    node.register_hook(lambda *_: calls.append("accumulated"))
    leaf.register_hook(lambda _: training.after_backward(lambda: calls.append("ended")))
    (leaf * leaf).sum().backward()
    assert calls == ["accumulated", "ended"]
    assert training.accumulator_of(leaf) is node


def test_what_was_deferred_is_known(mesh: DeviceMesh) -> None:
    """As long as it lives."""
    module = fully_shard(deferred_init(nn.Linear, 4, 8), mesh=mesh)
    assert module.weight not in dtensors.materialized
    materialize_module(module)
    assert module.weight in dtensors.materialized
    assert fully_shard(nn.Linear(4, 8), mesh=mesh).weight not in dtensors.materialized
