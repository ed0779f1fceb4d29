"""A program with all that touches torch, for tests/behaviour/test_torch_untouched.py: prints JSON.

Run as ``python -m tests.behaviour.torch_program WHAT``:

    warm     what a run on fakes has changed, in a process that has done the same on real tensors
    fakes    what torch has after a run on fakes, described
    real     what it has after the same run on real tensors
    alive    what has changed while one fake lives, and after it
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.behaviour import torch_state


def train(device: str) -> tuple[Any, Callable[..., Any]]:
    """A step of training with autocast, files, tracers, a compiled function and its result."""
    from torch.fx.experimental.proxy_tensor import make_fx

    model = nn.Sequential(nn.Linear(8, 8, device=device), nn.LayerNorm(8, device=device))
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast(device, torch.bfloat16):
        loss = model(torch.ones(2, 8, device=device)).sum()
    loss.backward()
    optimizer.step()
    make_fx(lambda x: x * 2)(torch.ones(2))
    torch.cond(torch.ones(()).sum() > 0, torch.sin, torch.cos, (torch.ones(2),))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.load(file)
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    return compiled(torch.ones(2)), compiled


def shard(build: Callable[..., Any], materialize: Callable[..., Any]) -> None:
    """FSDP2, and an attempt at DDP, of modules that `build` makes."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    sharded = fully_shard(build(nn.Linear, 8, 4), mesh=init_device_mesh("cpu", (2,)))
    assert sharded.weight.device == torch.device("cpu")
    with contextlib.suppress(ValueError, RuntimeError):
        nn.parallel.DistributedDataParallel(build(nn.Linear, 2, 2))
    materialize(sharded)
    materialize(build(nn.Linear, 8, 4))
    dist.destroy_process_group()


def run_on_real_tensors() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    result, compiled = train("cpu")
    compiled(result)
    make_fx(lambda x: x * 2)(result)
    shard(lambda build, *args: build(*args), lambda module: module)


def run_on_fakes() -> None:
    import torchfake

    with torchfake.fake_mode(fake_cuda=True):
        result, compiled = train("cuda")
    assert torchfake.is_fake(compiled(result))
    compiled(torch.ones(2))
    from torch.fx.experimental.proxy_tensor import make_fx

    make_fx(lambda x: x * 2)(result)
    shard(torchfake.deferred_init, torchfake.materialize_module)
    torchfake.estimate(nn.Linear(4, 4), torch.ones(2, 4), optimizer="adamw")


def changes_by_a_run() -> dict[str, Any]:
    run_on_real_tensors()
    before = torch_state.snapshot()
    run_on_fakes()
    gc.collect()
    after = torch_state.snapshot()
    return {"changed": torch_state.changes(before, after), "ours": torch_state.of_torchfake(after)}


def described(run: Callable[[], None]) -> dict[str, Any]:
    run()
    gc.collect()
    found = torch_state.snapshot()
    return {"functions": torch_state.described(found), "ours": torch_state.of_torchfake(found)}


def changes_while_a_fake_lives() -> dict[str, Any]:
    run_on_real_tensors()
    import torch.nn.attention.flex_attention

    import torchfake.deferred

    torchfake.fake_like(torch.ones(2))  # Dynamo is told what to skip
    before = torch_state.snapshot()
    fake = torchfake.fake_like(torch.ones(2))
    alive = torch_state.changes(before, torch_state.snapshot())
    del fake
    return {"alive": alive, "after": torch_state.changes(before, torch_state.snapshot())}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "warm": changes_by_a_run,
    "fakes": lambda: described(run_on_fakes),
    "real": lambda: described(run_on_real_tensors),
    "alive": changes_while_a_fake_lives,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    json.dump(PARTS[sys.argv[1]](), sys.stdout)
