"""Run on several ranks: each rank materializes its stage of a model, and trains it like eager."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from tests._sharding import models
from torchfake import deferred_init, is_deferred, materialize_module

WIDTH, BATCH, PARTS = 48, 8, 4


def build():
    return nn.Sequential(*(models.Block(WIDTH, 96) for _ in range(4)))


def loss_of(output, target):
    return (output - target).square().mean()


def main():
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    module = deferred_init(build)
    each = len(module) // num_ranks
    mine = slice(each * rank, each * (rank + 1))
    layers = materialize_module(module[mine])
    assert [not is_deferred(layer) for layer in module] == [
        i in range(mine.start, mine.stop) for i in range(len(module))
    ]
    for expected, made in zip(eager[mine].parameters(), layers.parameters(), strict=True):
        assert torch.equal(expected, made)

    stage = PipelineStage(layers, rank, num_ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, PARTS, loss_fn=loss_of)
    torch.manual_seed(1)
    inputs, target = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    ours = torch.optim.SGD(layers.parameters(), lr=0.1)
    theirs = torch.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(2):
        losses = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=target, losses=losses)
        parts = zip(inputs.chunk(PARTS), target.chunk(PARTS), strict=True)
        expected = [loss_of(eager(one), other) for one, other in parts]
        (sum(expected) / PARTS).backward()
        if losses:
            torch.testing.assert_close(torch.stack(losses), torch.stack(expected))
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    for expected, made in zip(eager[mine].parameters(), layers.parameters(), strict=True):
        torch.testing.assert_close(made, expected)
    if rank == 0:
        print("equal")
