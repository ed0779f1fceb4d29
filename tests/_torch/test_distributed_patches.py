"""What DTensors of fakes report; that DTensors of plain tensors answer as before."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake import deferred_init, deferred_mode, fake_mode, materialize_module
from torchfake._torch import distributed_patches
from torchfake.errors import MaterializeError


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def report(tensor: torch.Tensor) -> dict[str, Any]:
    """What a tensor says of where it is."""
    asked = {name: getattr(tensor, name) for name in ("device", "is_meta", "is_cpu", "is_cuda")}
    return {**asked, "get_device": tensor.get_device(), "type": tensor.type()}


def of_fsdp(build: Callable[..., Any], mesh: DeviceMesh) -> torch.Tensor:
    return fully_shard(build(nn.Linear, 8, 4), mesh=mesh).weight


def of_one_placement(placement: Any) -> Callable[..., Any]:
    def make(build: Callable[..., Any], mesh: DeviceMesh) -> torch.Tensor:
        return distribute_tensor(build(nn.Linear, 8, 4).weight, mesh, [placement])

    return make


def of_a_shard(build: Callable[..., Any], mesh: DeviceMesh) -> torch.Tensor:
    return DTensor.from_local(build(nn.Linear, 8, 4).weight, mesh, [Shard(0)])


WAYS = [of_fsdp, of_one_placement(Shard(0)), of_one_placement(Replicate()), of_a_shard]
VIEWS: dict[str, Callable[[Any], torch.Tensor]] = {
    "itself": lambda d: d,
    "data": lambda d: d.data,
    "detached": lambda d: d.detach(),
    "transposed": lambda d: d.t(),
    "computed": lambda d: d * 2,
    "new": lambda d: torch.zeros_like(d),
    "on the CPU": lambda d: d.to("cpu"),
    "local": lambda d: d.to_local(),
    "of data": lambda d: d.data.to_local(),
}


def eagerly(module: Callable[..., Any], *args: Any) -> Any:
    return module(*args)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [eagerly, deferred_init], ids=["eager", "deferred"])
def test_a_dtensor_reports_the_device_of_its_shard(
    build: Any, way: Any, name: str, mesh: DeviceMesh
) -> None:
    tensor = VIEWS[name](way(build, mesh))
    assert report(tensor) == report(torch.ones(2))
    assert tensor.type(torch.float64).dtype == torch.float64


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_on_cuda(mode: Any) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        with mode(fake_cuda=2):
            cuda = init_device_mesh("cuda", (2,))
            weight = DTensor.from_local(torch.ones(3, device="cuda:1"), cuda, [Shard(0)])
            expected = report(torch.ones(3, device="cuda:1"))
        assert report(weight) == report(weight.data) == expected
        assert expected["device"] == torch.device("cuda:1")
    finally:
        dist.destroy_process_group()


BEFORE_AND_AFTER = """
import torch, torchfake

weight = torchfake.deferred_init(torch.ones, 2)
weight.view_as(weight)

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
mesh = init_device_mesh("cpu", (2,))
names = ("device", "is_meta", "is_cpu", "is_cuda")
local = [torch.ones(2), torch.ones(2, dtype=torch.bool), torch.empty(2, device="meta")]
tensors = [DTensor.from_local(t, mesh, [Shard(0)], run_check=False) for t in local]
ask = lambda tensors: [
    [getattr(t, n) for n in names] + [t.get_device(), t.type()] for t in tensors
]
among_fakes = ask(tensors)
deferred = DTensor.from_local(weight, mesh, [Shard(0)], run_check=False)
assert ask([deferred]) == ask([torch.ones(2)])
assert ask(tensors) == among_fakes
assert tensors[0].type("torch.DoubleTensor").dtype == torch.float64
del weight
assert "device" in vars(DTensor)
del deferred
assert not {*names, "get_device", "type"} & vars(DTensor).keys()
assert ask(tensors) == among_fakes
"""


def test_a_dtensor_of_a_plain_tensor_answers_as_before() -> None:
    """DTensor is imported after the last mode, and its shard is only viewed on the way."""
    subprocess.run([sys.executable, "-c", BEFORE_AND_AFTER], check=True)


def test_what_is_replaced() -> None:
    """Of DTensor, what it inherits; of DDP, a method that takes nothing but the instance."""
    assert sys.modules[distributed_patches.DTENSORS].DTensor is DTensor
    replaced = distributed_patches.devices_of_shards()
    assert {owner for owner, _, _ in replaced} == {DTensor}
    assert all(callable(replace(None)) or replace(None).fget for _, _, replace in replaced)
    seen: list[Any] = []
    [(owner, name, replace)] = distributed_patches.check_before_ddp(seen.append)
    assert owner is sys.modules[distributed_patches.PARALLEL].DistributedDataParallel
    assert callable(getattr(owner, name))
    replace(lambda ddp: None)(SimpleNamespace(module="module"))
    assert seen == ["module"]


class Buffered(nn.Module):
    """A real parameter and, where it is built in a mode, a deferred buffer."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.register_buffer("scale", torch.rand(2))


def test_ddp_asks_for_values(mesh: DeviceMesh) -> None:
    real = torch.ones(2)
    for build, name in (
        (lambda: deferred_init(nn.Linear, 2, 2), "weight"),
        (lambda: deferred_init(Buffered, real), "scale"),
        (lambda: nn.Sequential(nn.Linear(2, 2), deferred_init(nn.Linear, 2, 2)), r"1\.weight"),
    ):
        with pytest.raises(MaterializeError, match=rf"{name} has no values.*materialize_module"):
            DistributedDataParallel(build())
        with pytest.raises(MaterializeError, match=name):
            DistributedDataParallel(build(), init_sync=False)
        wrapped = DistributedDataParallel(materialize_module(build()))
        assert all(type(p) is nn.Parameter for p in wrapped.parameters())
    assert DistributedDataParallel(nn.Linear(2, 2))(torch.ones(1, 2)).shape == (1, 2)


def test_where_the_ranks_of_a_pipeline_vote() -> None:
    start = distributed_patches.pipeline_start()
    if start is None:
        assert torch.__version__ < "2.15"
        return
    owner, name = start

    class Stage:
        _user_meta, _inference_mode = None, None

    def original(schedule: object, stages: list[Stage], has_backward: bool, first: bool) -> None:
        assert not InferenceMode.needs_dynamic(stages[0]._user_meta, has_backward)

    InferenceMode = importlib.import_module("torch.distributed.pipelining.stage").InferenceMode
    before = vars(InferenceMode)["needs_dynamic"]
    assert callable(getattr(owner, name))
    vote = distributed_patches.voting_alone(original)
    with pytest.raises(AttributeError):
        vote(None, [Stage()], True, True)
    assert vars(InferenceMode)["needs_dynamic"] is before


def test_outputs_that_a_stage_may_let_go_of() -> None:
    outputs = distributed_patches.pipeline_outputs()
    assert (outputs is None) == (torch.__version__ < "2.15")
    replacement = distributed_patches.taking_fakes_for_plain(lambda stage, output: type(output))
    with fake_mode():
        fake = torch.ones(2)
    assert replacement(None, fake) is torch.Tensor
    assert replacement(None, "text") is str
