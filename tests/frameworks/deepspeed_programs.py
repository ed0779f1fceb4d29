"""DeepSpeed: ZeRO 1 and 3."""

from __future__ import annotations

import importlib

import deepspeed
import torch

from tests.frameworks.program import Net, Result, Run, program

# It would compile C++, to save time.
importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None


def config(stage: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }


def train(run: Run, stage: int, model) -> Result:
    deepspeed.init_distributed("gloo")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, config=config(stage), optimizer=optimizer)
    run.materialize("after", engine.module)
    losses = run.train(engine, engine, engine.backward)
    weights = {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=stage == 3):
            weights[name] = parameter.detach().clone()
    return Result(losses, weights)


@program("DeepSpeed, ZeRO 1", "equal", "-", "error", "error")
def zero1(run: Run) -> Result:
    return train(run, 1, run.build())


@program("DeepSpeed, ZeRO 3", "equal", "-", "equal", "equal")
def zero3(run: Run) -> Result:
    return train(run, 3, run.build())


@program("DeepSpeed, ZeRO 3, other seeds on other ranks", "equal", "-", "equal", "equal")
def zero3_seeds(run: Run) -> Result:
    return train(run, 3, run.build(seed=run.rank))


@program("DeepSpeed, zero.Init around deferred_init", "equal", "equal", "equal", "equal")
def zero3_init(run: Run) -> Result:
    deepspeed.init_distributed("gloo")
    with deepspeed.zero.Init(config_dict_or_path=config(3), dtype=torch.float32):
        model = run.build(Net)
        run.materialize("inside", model)
    return train(run, 3, model)
