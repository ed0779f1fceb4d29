"""Lightning: Fabric and Trainer, with DDP, FSDP1, FSDP2 and tensor parallelism."""

from __future__ import annotations

import lightning as L
import torch
from lightning.fabric.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.strategies import FSDPStrategy as TrainerFSDPStrategy
from lightning.pytorch.strategies import ModelParallelStrategy as TrainerModelParallelStrategy
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.frameworks.program import Block, Result, Run, loss_of, program, whole_weights


def fsdp2(run: Run):
    def parallelize(model, mesh):
        for layer in model.layers:
            fully_shard(layer, mesh=mesh["data_parallel"])
        return run.materialize("inside", fully_shard(model, mesh=mesh["data_parallel"]))

    return parallelize, {"data_parallel_size": 2, "tensor_parallel_size": 1}


def tensor_parallel(run: Run):
    run.rank = 0  # the same tokens

    def parallelize(model, mesh):
        for layer in model.layers:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(layer, mesh["tensor_parallel"], plan)
        return run.materialize("inside", model)

    return parallelize, {"data_parallel_size": 1, "tensor_parallel_size": 2}


class FabricFSDP(FSDPStrategy):
    """FSDP1. Lightning refuses its own class on a CPU, which FSDP does not."""


class TrainerFSDP(TrainerFSDPStrategy):
    """The same for Trainer."""


class FSDPOnCPU(FullyShardedDataParallel):
    """What they wrap with: they name no device, and FSDP would look for a GPU then."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **{**kwargs, "device_id": torch.device("cpu")})


def fsdp1(strategy):
    torch.distributed.fsdp.FullyShardedDataParallel = FSDPOnCPU  # in this process only
    return strategy(auto_wrap_policy={Block}, use_orig_params=True)


# Fabric.


def fabric(run: Run, strategy) -> Result:
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    model = run.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if isinstance(strategy, (str, FSDPStrategy)):
        model, optimizer = fabric.setup(model, optimizer)
    else:
        model = fabric.setup(model)
        optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
    run.materialize("after", model)
    losses = run.train(model, optimizer, fabric.backward)
    if isinstance(strategy, FSDPStrategy):
        with FullyShardedDataParallel.summon_full_params(model._forward_module):
            return Result(losses, whole_weights(model.module))
    return Result(losses, whole_weights(model.module))


@program("Fabric, DDP", "equal", "-", "error", "error")
def fabric_ddp(run: Run) -> Result:
    return fabric(run, "ddp")


@program("Fabric, FSDPStrategy", "equal", "-", "equal", "error")
def fabric_fsdp1(run: Run) -> Result:
    return fabric(run, fsdp1(FabricFSDP))


@program("Fabric, ModelParallelStrategy with FSDP2", "equal", "equal", "equal", "error")
def fabric_fsdp2(run: Run) -> Result:
    parallelize, sizes = fsdp2(run)
    return fabric(run, ModelParallelStrategy(parallelize, **sizes))


@program("Fabric, ModelParallelStrategy with TP", "equal", "equal", "equal", "error")
def fabric_tensor_parallel(run: Run) -> Result:
    parallelize, sizes = tensor_parallel(run)
    return fabric(run, ModelParallelStrategy(parallelize, **sizes))


# Trainer.


class Trained(L.LightningModule):
    """Two steps of training; configure_model builds, shards or does nothing, as given."""

    def __init__(self, run: Run, model, configure=None) -> None:
        super().__init__()
        self.runs, self.configure, self.losses = run, configure, []
        self.model = model

    def configure_model(self) -> None:
        if self.configure is not None:
            self.configure(self)
            self.configure = None

    def training_step(self, batch, index):
        loss = loss_of(self.model, self.runs.tokens(index))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def on_fit_start(self) -> None:
        wrapped = isinstance(self.trainer.strategy, TrainerFSDP)
        self.runs.materialize("after", self.trainer.strategy.model if wrapped else self)


def trainer(run: Run, strategy, configure=None, early=True) -> Result:
    module = Trained(run, run.build() if early else None, configure)
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_steps=2, **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(8, 1), batch_size=1))
    if isinstance(strategy, TrainerFSDPStrategy):
        with FullyShardedDataParallel.summon_full_params(trainer.strategy.model):
            return Result(module.losses, whole_weights(module.model))
    return Result(module.losses, whole_weights(module.model))


@program("Trainer, DDP", "equal", "-", "error", "error")
def trainer_ddp(run: Run) -> Result:
    return trainer(run, "ddp")


@program("Trainer, FSDPStrategy", "equal", "-", "equal", "error")
def trainer_fsdp1(run: Run) -> Result:
    return trainer(run, fsdp1(TrainerFSDP))


@program("Trainer, ModelParallelStrategy with FSDP2", "equal", "equal", "equal", "error")
def trainer_fsdp2(run: Run) -> Result:
    parallelize, sizes = fsdp2(run)

    def configure(module) -> None:
        parallelize(module.model, module.device_mesh)

    return trainer(run, TrainerModelParallelStrategy(**sizes), configure)


@program("Trainer, ModelParallelStrategy with TP", "equal", "equal", "equal", "error")
def trainer_tensor_parallel(run: Run) -> Result:
    parallelize, sizes = tensor_parallel(run)

    def configure(module) -> None:
        module.model = run.build()
        parallelize(module.model, module.device_mesh)

    return trainer(run, TrainerModelParallelStrategy(**sizes), configure, early=False)
