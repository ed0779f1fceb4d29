"""Run by torchrun on gloo: what happens if one of the ranks is not as the others.

Takes cases as ``what:rank``, and prints ``what: rank: message`` for each, on all ranks.
"""

import os
import signal
import sys
import time
from datetime import timedelta

import models
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from torchfake import deferred_init, is_deferred, materialize_module
from torchfake.errors import RankMismatchError

TIMEOUT = timedelta(seconds=20)


def build(case, is_odd):
    """A sharded deferred module that is not the same on the odd rank."""
    torch.manual_seed(1 if case == "seed" and is_odd else 0)
    if case == "draw" and is_odd:
        torch.rand(1)
    width = 52 if case == "width" and is_odd else 48
    layers = 1 if case == "layers" and is_odd else 2
    module = deferred_init(models.Net, width=width, layers=layers)
    if case == "edit" and is_odd:
        module.layers[1].down.bias.data.add_(1)
    return module


class Few(torch.nn.Module):
    """Fewer rows than ranks, so that there are shards of nothing."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(17, 5, padding_idx=3)
        self.head = torch.nn.Linear(5, 2)


class Of(torch.nn.Module):
    """A parameter that `make` makes."""

    def __init__(self, make):
        super().__init__()
        self.weight = torch.nn.Parameter(make())


def sharded(mesh, build):
    torch.manual_seed(0)
    return fully_shard(deferred_init(build), mesh=mesh)


def changed_by_all(mesh):
    """Each rank changes its own shard, of its own size: that is no difference."""
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
    print(f"same: {dist.get_rank()}", flush=True)


def built_otherwise(mesh):
    """What differs before it is sharded is found, wherever it is."""
    odd = dist.get_rank() == 1

    def part():
        flat = torch.empty(600).normal_()
        return flat[300 * odd : 300 * odd + 300].view(30, 10)

    def rounded():
        weight = torch.randn(20, 20)
        return weight.half().float() if odd else weight

    def turned():
        weight = torch.randn(20, 20)
        return weight.t().contiguous() if odd else weight

    for make in (part, rounded, turned):
        module = sharded(mesh, lambda make=make: Of(make))
        try:
            materialize_module(module)
        except RankMismatchError:
            print(f"{make.__name__}: {dist.get_rank()}", flush=True)


def materialize(module, case):
    rank = dist.get_rank()
    begun = time.monotonic()
    try:
        materialize_module(module)
    except RankMismatchError as error:
        assert all(map(is_deferred, module.parameters()))
        print(f"{case}: {rank}: {error}", flush=True)
    except Exception as error:
        assert time.monotonic() - begun < 3 * TIMEOUT.seconds
        print(f"{case}: {rank}: {type(error).__name__}", flush=True)


def main(cases):
    dist.init_process_group("gloo", timeout=TIMEOUT)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for case in cases:
        name, odd = case.split(":")
        if name in ("same", "otherwise"):
            (changed_by_all if name == "same" else built_otherwise)(mesh)
            continue
        is_odd = dist.get_rank() == int(odd)
        module = models.fsdp(build(name, is_odd), mesh)
        if name == "dies" and is_odd:
            os.kill(os.getpid(), signal.SIGKILL)
        materialize(module, name)
    sys.stdout.flush()
    os._exit(0)  # past what waits for those that are gone


if __name__ == "__main__":
    main(sys.argv[1:])
