"""Small pipelines over four ranks: what a plan and a real run are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from tests.distributed.sharded_models import Block

VOCABULARY, WIDTH, LENGTH = 64, 32, 12


class Decoder(nn.Module):
    """The first stage has the embedding, the last the head."""

    def __init__(self, num_layers: int = 8) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(WIDTH, 64) for _ in range(num_layers))
        self.head: nn.Module | None = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


def part_of(model: Any, index: int, number: int) -> Decoder:
    """One of so many stages."""
    part, size = Decoder(0), len(model.layers) // number
    part.embedding = model.embedding if index == 0 else None
    part.head = model.head if index == number - 1 else None
    part.layers = nn.ModuleList(model.layers[size * index : size * (index + 1)])
    return part


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


class PipelineCase(NamedTuple):
    """A schedule of torch's, and the mesh; ``dp`` is sharded by FSDP2 inside of a stage."""

    schedule: str
    stages_of_rank: Callable[[int, int], list[int]] = lambda rank, size: [rank]
    num_microbatches: int = 8
    shape: tuple[int, ...] = (4,)
    optimizer: str = "AdamW"
    keep_gradients: bool = False
    num_layers: int = 8

    @property
    def names(self) -> tuple[str, ...]:
        return ("pp", "dp")[: len(self.shape)]

    def build(self) -> nn.Module:
        return Decoder(self.num_layers)

    def parallelize(self, model: nn.Module, mesh: Any) -> Any:
        """The schedule of this rank."""
        axis, device = mesh["pp"], next(model.parameters()).device
        indices = self.stages_of_rank(axis.get_local_rank(), axis.size())
        number = axis.size() * len(indices)
        parts = [part_of(model, index, number) for index in indices]
        if "dp" in self.names:
            for part in parts:
                for layer in part.layers:
                    fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False)
                fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False)
        stages = [
            pipelining.PipelineStage(part, index, number, device, group=axis.get_group())
            for part, index in zip(parts, indices, strict=True)
        ]
        cls: Any = pipelining.schedules.get_schedule_class(self.schedule)
        is_single = issubclass(cls, pipelining.schedules.PipelineScheduleSingle)
        return cls(stages[0] if is_single else stages, self.num_microbatches, loss_fn=loss)


def looped(rank: int, size: int) -> list[int]:
    return [rank, rank + size]


def v_shaped(rank: int, size: int) -> list[int]:
    return [rank, 2 * size - 1 - rank]


PIPELINES = {
    "gpipe": PipelineCase("GPipe", optimizer="SGD"),
    "1f1b": PipelineCase("1F1B"),
    "1f1b, gradients kept": PipelineCase("1F1B", keep_gradients=True),
    "1f1b and fsdp": PipelineCase("1F1B", shape=(2, 2)),
    "interleaved": PipelineCase("Interleaved1F1B", looped),
    "interleaved and fsdp": PipelineCase("Interleaved1F1B", looped, shape=(2, 2)),
    "breadth first": PipelineCase("LoopedBFS", looped),
    "zero bubble": PipelineCase("InterleavedZeroBubble", looped),
    "zero bubble and fsdp": PipelineCase("InterleavedZeroBubble", looped, shape=(2, 2)),
    "zero bubble in a v": PipelineCase("ZBVZeroBubble", v_shaped),
    "dual pipe in a v": PipelineCase("DualPipeV", v_shaped),
}


def tokens(num_microbatches: int = 8) -> torch.Tensor:
    """Of all micro-batches, two sequences each."""
    return torch.randint(60, (2 * num_microbatches, LENGTH))
