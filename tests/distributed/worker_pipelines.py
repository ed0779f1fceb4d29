"""Run on four ranks: real steps of pipelines, every storage and message counted.

Its arguments are a folder, into which each rank writes what it has counted, and names of cases.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import schedules

from tests.distributed.pipelined_models import PIPELINES, PipelineCase, tokens
from tests.distributed.worker_counted import (
    Counting,
    counting_resizes,
    locals_of,
    state_of,
    sum_bytes,
)
from torchfake._torch.distributed.training import pipeline_stages_of


def counted(case: PipelineCase) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", case.shape, mesh_dim_names=case.names)
    model = case.build()
    schedule = case.parallelize(model, mesh)
    del model
    stages: Any = pipeline_stages_of(schedule)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = getattr(torch.optim, case.optimizer)(parameters)
    given, target = tokens(case.num_microbatches), tokens(case.num_microbatches)
    counting = Counting()
    buffers = [b for stage in stages for b in stage.submod.buffers()]
    for tensor in locals_of([*parameters, *buffers, given, target]):
        counting.observe(tensor.untyped_storage())

    def step() -> None:
        for parameter in parameters:
            if not case.keep_gradients:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        losses: list[torch.Tensor] = []
        args = (given,) if any(stage.is_first for stage in stages) else ()
        last = any(stage.is_last for stage in stages)
        options = {"target": target, "losses": losses} if last else {}
        schedule.step(*args, **options, return_outputs=False)
        optimizer.step()

    with counting_resizes(counting), counting:
        step()
        first, counting.peak_bytes, counting.messages = counting.peak_bytes, 0, {}
        step()
    return {
        "parameters": sum_bytes(parameters),
        "gradients": sum_bytes(p.grad for p in parameters),
        "optimizer state": sum_bytes(state_of(optimizer)),
        "first peak": first,
        "peak": counting.peak_bytes,
        "messages": counting.messages,
    }


def main(folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wait = schedules._wait_batch_p2p

    def settled(work: Any) -> None:
        wait(work)
        work.clear()
        time.sleep(0.002)  # until gloo's thread has let go of what it sent

    schedules._wait_batch_p2p = settled
    found = {name: counted(PIPELINES[name]) for name in names}
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(found))
