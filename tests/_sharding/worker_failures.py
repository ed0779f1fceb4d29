"""Run on several ranks: what happens if one of them differs from the others, or dies.

Takes cases as ``name:rank``, and prints ``name: message`` for each, on all ranks.
"""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests._sharding import models
from torchfake import deferred_init, is_deferred, materialize_module
from torchfake.errors import RankMismatchError

TIMEOUT = timedelta(seconds=20)


def build(case, differs):
    """A deferred module that differs on one rank."""
    torch.manual_seed(1 if case == "seed" and differs else 0)
    if case == "draw" and differs:
        torch.rand(1)
    width = 52 if case == "width" and differs else 48
    layers = 1 if case == "layers" and differs else 2
    module = deferred_init(models.Net, width=width, layers=layers)
    if case == "edit" and differs:
        module.layers[1].down.bias.data.add_(1)
    return module


class Few(torch.nn.Module):
    """Fewer rows than ranks, so that there are shards of nothing."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(17, 5, padding_idx=3)
        self.head = torch.nn.Linear(5, 2)


class Of(torch.nn.Module):
    """A module with the parameter that `make` returns."""

    def __init__(self, make):
        super().__init__()
        self.weight = torch.nn.Parameter(make())


def sharded(mesh, build):
    torch.manual_seed(0)
    return fully_shard(deferred_init(build), mesh=mesh)


def changed_by_all(mesh):
    """Each rank changes its own shard, of its own size: ranks do not differ by that."""
    module = sharded(mesh, Few)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
        torch.nn.init.ones_(module.head.bias)
        module.embed.weight.copy_(module.embed.weight + 1)
    materialize_module(module)
    torch.manual_seed(0)
    assert torch.equal(module.embed.weight.full_tensor(), Few().embed.weight * 2 + 1)

    def on_shards(module):
        module.weight.to_local().mul_(2)

    for change in (
        lambda module: torch.nn.init.zeros_(module.weight),
        lambda module: torch.nn.init.constant_(module.bias, 3),
        lambda module: torch._foreach_mul_([module.weight, module.bias], 2.0),
        on_shards,
    ):
        module = sharded(mesh, lambda: torch.nn.Linear(6, 10))
        with torch.no_grad():
            change(module)
        materialize_module(module)
    print("same: equal", flush=True)


def built_differently(mesh):
    """A difference before the module is sharded is found, in whatever operation it is."""
    different = dist.get_rank() == 1

    def part():
        flat = torch.empty(600).normal_()
        return flat[300 * different : 300 * different + 300].view(30, 10)

    def rounded():
        weight = torch.randn(20, 20)
        return weight.half().float() if different else weight

    def turned():
        weight = torch.randn(20, 20)
        return weight.t().contiguous() if different else weight

    for make in (part, rounded, turned):
        module = sharded(mesh, lambda make=make: Of(make))
        try:
            materialize_module(module)
        except RankMismatchError:
            print(f"{make.__name__}: refused", flush=True)


def materialize(module, case):
    begun = time.monotonic()
    try:
        materialize_module(module)
    except RankMismatchError as error:
        assert all(map(is_deferred, module.parameters()))
        print(f"{case}: {error}", flush=True)
    except Exception as error:
        assert time.monotonic() - begun < 3 * TIMEOUT.seconds
        print(f"{case}: {type(error).__name__}", flush=True)


def main(*cases):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for case in cases:
        name, rank = case.split(":")
        if name in ("same", "otherwise"):
            (changed_by_all if name == "same" else built_differently)(mesh)
            continue
        differs = dist.get_rank() == int(rank)
        module = models.fsdp(build(name, differs), mesh)
        if name == "dies" and differs:
            os.kill(os.getpid(), signal.SIGKILL)
        materialize(module, name)
