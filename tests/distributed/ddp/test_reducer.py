"""DistributedDataParallel in a plan: its errors, and what it does beside what counted runs show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.sharded_models import Normed, inputs, replicas
from torchfake import fake_mode
from torchfake.distributed import Plan, plan
from torchfake.errors import InputsError

pytestmark = pytest.mark.filterwarnings("ignore")  # DDP's, of broadcast_buffers


def planned(parallelize: Any, build: Any = Normed, **options: Any) -> Plan:
    return plan(
        build, mesh_shape=4, parallelize=parallelize, inputs=inputs, optimizer="sgd", **options
    )


def test_buckets_are_reduced_while_the_backward_pass_goes_on() -> None:
    wrap = replicas(bucket_cap_mb=0.01, find_unused_parameters=True)
    schedule = planned(wrap, gpu="h100-80gb").schedule
    sends = [i for i, c in enumerate(schedule.commands) if c.name == "all_reduce"]
    computed = [i for i, c in enumerate(schedule.commands) if c.place.phase == "backward"]
    assert len(sends) > 2
    assert {schedule.commands[i].place.stream for i in sends} == {1}
    assert sends[0] < computed[-1] - 20
    assert schedule.begins[sends[1]] < schedule.begins[computed[-1]]


def test_without_synchronization_nothing_is_sent() -> None:
    def wrap(model: Any, mesh: Any) -> Any:
        model = replicas(find_unused_parameters=True, broadcast_buffers=False)(model, mesh)
        model.require_backward_grad_sync = False  # as in no_sync()
        return model

    assert planned(wrap, device="cpu").traffic == ()


def test_unused_parameters_are_what_the_second_step_of_ddp_complains_of() -> None:
    with pytest.raises(InputsError, match=r"rank 0.*Expected to have finished.*unused\.weight"):
        planned(replicas(), device="cpu")


def test_what_the_reducer_does_not_do_is_refused() -> None:
    def hooked(model: Any, mesh: Any) -> Any:
        model = replicas()(model, mesh)
        model.register_comm_hook(None, allreduce_hook)
        return model

    with pytest.raises(InputsError, match="leave out register_comm_hook"):
        planned(hooked, device="cpu")
    with pytest.raises(InputsError, match="skip_all_reduce_unused_params=True cannot be planned"):
        planned(replicas(skip_all_reduce_unused_params=True), device="cpu")

    def sparse() -> nn.Module:
        return nn.Embedding(10, 4, sparse=True)

    with pytest.raises(InputsError, match=r"Embedding\(sparse=True\) cannot be planned"):
        planned(replicas(), sparse, device="cpu")


def test_outside_of_a_plan_fakes_are_refused_as_before() -> None:
    planned(replicas(find_unused_parameters=True), device="cpu")
    torch.distributed.init_process_group("fake", rank=0, world_size=2)
    try:
        with fake_mode(), pytest.raises(RuntimeError):
            DistributedDataParallel(nn.Linear(2, 2))
        real = DistributedDataParallel(nn.Linear(2, 2))
        assert isinstance(real.reducer, torch.distributed.Reducer)
    finally:
        torch.distributed.destroy_process_group()
