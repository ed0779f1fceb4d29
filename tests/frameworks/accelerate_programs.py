"""accelerate: DDP and FSDP2. (Its FSDP1 refuses a CPU, as it passes FSDP the device ``cpu:0``.)"""

from __future__ import annotations

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType

from tests.frameworks.program import Result, Run, program, whole_weights


def train(run: Run, **plugin) -> Result:
    accelerator = Accelerator(cpu=True) if not plugin else sharding_accelerator(**plugin)
    model = run.build(persistent=not plugin)  # accelerate does not load persistent buffers
    if plugin.get("cpu_ram_efficient_loading") and run.place == "eager":
        model = model if run.rank == 0 else model.apply(spoil)  # only the first rank has the values
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    run.materialize("after", model)
    losses = run.train(model, optimizer, accelerator.backward)
    return Result(losses, whole_weights(accelerator.unwrap_model(model)))


def sharding_accelerator(**plugin) -> Accelerator:
    """One for FSDP. accelerate asks for GPUs first, which FSDP itself does not need."""
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(**plugin))


def spoil(module) -> None:
    for parameter in module.parameters(recurse=False):
        torch.nn.init.zeros_(parameter)


@program("accelerate, DDP", "equal", "-", "error", "error")
def ddp(run: Run) -> Result:
    return train(run)


SHARDED = {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["Block"]}


@program("accelerate, FSDP2", "equal", "-", "equal", "error")
def fsdp2(run: Run) -> Result:
    return train(run, fsdp_version=2, cpu_ram_efficient_loading=False, **SHARDED)


@program("accelerate, FSDP2 with cpu_ram_efficient_loading", "equal", "-", "equal", "error")
def fsdp2_efficient(run: Run) -> Result:
    return train(run, fsdp_version=2, cpu_ram_efficient_loading=True, **SHARDED)
