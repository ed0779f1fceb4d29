"""Two processes: FSDP1 materializes a deferred module, shards it and trains a step, as in eager."""

from __future__ import annotations

import importlib
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def step(module: nn.Module) -> list[torch.Tensor]:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    sharded = FSDP(module, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    sharded(torch.ones(2, 8)).pow(2).sum().backward()
    optimizer.step()
    with FSDP.summon_full_params(sharded):
        return [p.detach().clone() for p in sharded.parameters()]


def worker(rank: int, path: str, imported_first: bool) -> None:
    if imported_first:
        importlib.import_module("torch.distributed.fsdp")
    import torchfake

    torchfake.install_as_torchdistx()
    from torchdistx.deferred_init import deferred_init, is_deferred  # type: ignore[import-not-found]
    from torchdistx.fake import is_fake  # type: ignore[import-not-found]

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(0)
    eager = step(build())
    torch.manual_seed(0)
    module = deferred_init(build)
    assert is_deferred(module)
    assert is_fake(module[0].weight)
    made = step(module)
    assert len(made) == 4
    assert all(torch.equal(a, b) for a, b in zip(eager, made, strict=True))
    dist.barrier()
    os._exit(0)  # past gloo's threads, one of which now and then aborts a process that ends


if __name__ == "__main__":
    mp.spawn(worker, (sys.argv[1], sys.argv[2] == "first"), nprocs=2)  # type: ignore[no-untyped-call]
    sys.stdout.write("equal\n")
