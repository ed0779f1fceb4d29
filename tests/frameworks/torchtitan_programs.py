"""torchtitan: its llama3, parallelized by its own function."""

from __future__ import annotations

import torch
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.models.llama3 import llama3_configs, parallelize_llama

from tests.frameworks.program import Result, Run, program, whole_weights

parallel_dims.device_type = "cpu"  # it takes CUDA for granted


def build(initialize: bool):
    def make():
        model = llama3_configs["debugmodel"](attn_backend="flex").build()
        if initialize:
            model.init_weights()
        return model

    return make


def parallelize(model, fsdp: int, tp: int):
    backend = "partial_dtensor"
    dims = ParallelDims(
        dp_replicate=1, dp_shard=fsdp, cp=1, tp=tp, pp=1, ep=1, world_size=2, spmd_backend=backend
    )
    return parallelize_llama(
        model,
        parallel_dims=dims,
        training=TrainingConfig(mixed_precision_param="float32"),
        parallelism=ParallelismConfig(spmd_backend=backend),
        compile_config=CompileConfig(enable=False),
        ac_config=None,
        dump_folder="",
    )


# Its attention does not run on a CPU, so weights are compared and nothing is trained.


@program("torchtitan, llama3 with FSDP2", "equal", "equal", "equal", "error")
def fsdp(run: Run) -> Result:
    model = run.build(build(initialize=True))
    model = run.materialize("inside", parallelize(model, 2, 1))
    run.materialize("after", model)
    return Result([], whole_weights(model))


@program("torchtitan, llama3 with TP", "equal", "equal", "equal", "equal")
def tensor_parallel(run: Run) -> Result:
    model = run.build(build(initialize=True))
    model = run.materialize("inside", parallelize(model, 1, 2))
    run.materialize("after", model)
    return Result([], whole_weights(model))


@program("torchtitan, to_empty and init_weights", "equal", "equal", "equal", "error")
def initialized_later(run: Run) -> Result:
    """As its trainer does: weights are drawn once the model is sharded."""
    model = run.build(build(initialize=False))
    model = run.materialize("inside", parallelize(model, 2, 1))
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))
    run.materialize("after", model)
    return Result([], whole_weights(model))
