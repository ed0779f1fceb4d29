"""torch's own: FSDP, DDP, tensor parallelism, pipelines, state dicts and checkpoints."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tests.frameworks.program import Block, Net, Result, Run, program, whole_weights
from torchfake import deferred_init, install_as_torchdistx


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def shard(run: Run, model):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh())
        run.materialize("inside", layer)
    fully_shard(model, mesh=mesh())
    return run.materialize("inside", model)


@program("FSDP2", "equal", "equal", "equal", "error")
def fsdp2(run: Run) -> Result:
    model = run.materialize("after", shard(run, run.build()))
    return Result(run.train(model), whole_weights(model))


@program("tensor parallel", "equal", "equal", "equal", "error")
def tensor_parallel(run: Run) -> Result:
    run.rank = 0  # the same tokens
    model = run.build()
    for layer in model.layers:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh(), plan)
        run.materialize("inside", layer)
    model = run.materialize("inside", run.materialize("after", model))
    return Result(run.train(model), whole_weights(model))


@program("DDP", "equal", "-", "error", "error")
def ddp(run: Run) -> Result:
    model = run.materialize("after", DistributedDataParallel(run.build()))
    return Result(run.train(model), whole_weights(model))


def fsdp1(run: Run, use_orig_params: bool) -> Result:
    model = FullyShardedDataParallel(
        run.build(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=use_orig_params,
    )
    run.materialize("after", model)
    losses = run.train(model)
    with FullyShardedDataParallel.summon_full_params(model):
        return Result(losses, whole_weights(model.module))


@program("FSDP1, use_orig_params=True", "equal", "-", "equal", "error")
def fsdp1_orig_params(run: Run) -> Result:
    return fsdp1(run, True)


@program("FSDP1, use_orig_params=False", "equal", "-", "equal", "error")
def fsdp1_flat_params(run: Run) -> Result:
    return fsdp1(run, False)


@program("FSDP1, install_as_torchdistx", "equal", "-", "equal", "equal")
def fsdp1_torchdistx(run: Run) -> Result:
    install_as_torchdistx()
    return fsdp1(run, False)


def stage_of(run: Run, model):
    layers = [nn.Sequential(model.embed, model.layers[0]), nn.Sequential(model.layers[1])]
    return layers[run.rank]


@program("pipelining", "equal", "equal", "equal", "error")
def pipelining(run: Run) -> Result:
    part = run.materialize("inside", stage_of(run, run.build()))
    stage = PipelineStage(part, run.rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda x, y: (x - y).pow(2).mean())
    run.materialize("after", part)
    losses: list = []
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    run.rank = 0
    for step in range(2):
        optimizer.zero_grad()
        if stage.is_first:
            schedule.step(run.tokens(step))
        else:
            schedule.step(target=torch.ones(2, 8, 16), losses=losses)
        optimizer.step()
    return Result([loss.item() for loss in losses], whole_weights(part))


# State dicts and checkpoints.


def trained():
    torch.manual_seed(7)
    return Net().state_dict()


def load_with(run: Run, options: StateDictOptions, on_first_only: bool) -> Result:
    model = run.materialize("inside", shard(run, run.build()))
    state = trained() if run.rank == 0 or not on_first_only else {}
    set_model_state_dict(model, state, options=options)
    run.materialize("after", model)
    return Result(run.train(model), whole_weights(model))


@program("set_model_state_dict, whole", "equal", "equal", "equal", "error")
def set_whole(run: Run) -> Result:
    return load_with(run, StateDictOptions(full_state_dict=True), False)


@program("set_model_state_dict, broadcast", "equal", "equal", "equal", "error")
def set_broadcast(run: Run) -> Result:
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    return load_with(run, options, True)


@program("set_model_state_dict, deferred values", "equal", "equal", "equal", "error")
def set_deferred(run: Run) -> Result:
    """The first rank has a deferred state dict, the others have none."""
    model = run.materialize("inside", shard(run, run.build()))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    torch.manual_seed(7)
    state = {} if run.rank else (Net if run.place == "eager" else deferred_net)().state_dict()
    set_model_state_dict(model, state, options=options)
    run.materialize("after", model)
    return Result(run.train(model), whole_weights(model))


def deferred_net():
    return deferred_init(Net)


@program("get_model_state_dict, whole", "equal", "equal", "error", "error")
def get_whole(run: Run) -> Result:
    model = run.materialize("inside", shard(run, run.build()))
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    run.materialize("after", model)
    return Result(run.train(model), state)


@program("get_model_state_dict, shards", "equal", "equal", "equal", "error")
def get_shards(run: Run) -> Result:
    model = run.materialize("inside", shard(run, run.build()))
    state = get_model_state_dict(model)
    run.materialize("after", model)
    losses = run.train(model)
    whole = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in state.items()}
    return Result(losses, whole)


def load_state_dict(run: Run, assign: bool) -> Result:
    model = run.materialize("inside", shard(run, run.build()))
    torch.manual_seed(7)
    other = shard(Run("", 0, ""), Net()).state_dict()
    model.load_state_dict(other, assign=assign)
    run.materialize("after", model)
    return Result(run.train(model), whole_weights(model))


@program("load_state_dict", "equal", "equal", "equal", "error")
def load_copying(run: Run) -> Result:
    return load_state_dict(run, False)


@program("load_state_dict(assign=True)", "equal", "equal", "equal", "equal")
def load_assigning(run: Run) -> Result:
    return load_state_dict(run, True)


@program("checkpoint, saved", "equal", "equal", "equal", "error")
def dcp_save(run: Run) -> Result:
    model = run.materialize("inside", shard(run, run.build()))
    folder = os.path.join(run.folder, "saved")
    dcp.save(model.state_dict(), checkpoint_id=folder)
    run.materialize("after", model)
    torch.manual_seed(3)
    loaded = shard(Run("", 0, ""), Net())
    state = loaded.state_dict()
    dcp.load(state, checkpoint_id=folder)
    return Result(run.train(model), whole_weights(loaded))


@program("checkpoint, loaded", "equal", "equal", "equal", "error")
def dcp_load(run: Run) -> Result:
    folder = os.path.join(run.folder, "saved")
    dcp.save(trained(), checkpoint_id=folder)
    model = run.materialize("inside", shard(run, run.build()))
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state)
    run.materialize("after", model)
    return Result(run.train(model), whole_weights(model))
