"""``module.to_empty()`` of a deferred module keeps what was recorded until it is overwritten."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests._recording.conftest import live_ops
from tests.oracle import bits, named_tensors
from torchfake import deferred_init, deferred_mode, graph, materialize_module
from torchfake._torch.compiler import python_functions


class Mixed(nn.Module):
    """``reset_parameters`` of its layers does not draw all of it again."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3))
        self.layer = nn.Linear(4, 6)
        self.embed = nn.Embedding(6, 4)
        self.embed.weight = self.layer.weight
        self.register_buffer("table", torch.arange(3) + 1)


def build(seed: int = 0) -> Mixed:
    torch.manual_seed(seed)
    return Mixed()


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def assert_equal(module: nn.Module, expected: nn.Module) -> None:
    for (name, one), (_, other) in zip(named_tensors(module), named_tensors(expected), strict=True):
        assert bits(one) == bits(other), name


@pytest.mark.parametrize("inside", [False, True])
def test_what_was_recorded_stays(inside: bool) -> None:
    if inside:
        with deferred_mode():
            module = build().to_empty(device="cpu")
    else:
        module = deferred_init(build).to_empty(device="cpu")
    assert_equal(materialize_module(module), build())


def test_what_is_initialized_again_is_drawn_again() -> None:
    module, eager = deferred_init(build).to_empty(device="cpu"), build()
    for each in (module, eager):
        torch.manual_seed(5)
        each.layer.reset_parameters()
    assert len(graph(module.layer.bias)) == 1  # no copy of what it overwrites
    assert_equal(materialize_module(module).layer, eager.layer)
    assert module.embed.weight is module.layer.weight
    assert torch.equal(module.scale, build().scale)  # in eager it may be anything


def test_nothing_of_it_lives_on() -> None:
    gc.collect()
    before = live_ops()
    module = deferred_init(nn.Linear, 2, 2)
    first = live_ops()
    module.to_empty(device="cpu").reset_parameters()
    assert live_ops() == first > before


def test_of_shards(mesh: DeviceMesh) -> None:
    module = fully_shard(deferred_init(build), mesh=mesh).to_empty(device="cpu")
    materialize_module(module)
    assert torch.equal(module.layer.weight.to_local(), build().layer.weight[3:])


def test_on_another_device() -> None:
    with deferred_mode(fake_cuda=True):
        module = build().to_empty(device="cuda")
    assert module.layer.weight.device == torch.device("cuda:0")
    assert_equal(materialize_module(module, device="cpu"), build())
    assert deferred_init(build).to_empty(device="meta").scale.is_meta


def test_under_deterministic_algorithms_it_is_filled(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    module, eager = deferred_init(build), build()
    torch.use_deterministic_algorithms(True)
    assert_equal(materialize_module(module.to_empty(device="cpu")), eager.to_empty(device="cpu"))


def test_other_empty_memory_is_empty() -> None:
    weight = deferred_init(torch.ones, 2)
    assert len(graph(torch.empty_like(weight))) == 0
    assert python_functions.code_of_to_empty()
