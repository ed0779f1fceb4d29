"""MPT models as LLM Foundry trains them: FSDP with mixed precision, no biases, learned positions.

Sizes are those of its YAML files; the number of parameters in its tables confirms them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from torchfake import plan
from torchfake.distributed import Plan

VOCABULARY = 50368
SIZES = {  # width, heads, depth
    "125m": (768, 12, 12),
    "350m": (1024, 16, 24),
    "760m": (1536, 12, 24),
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, -1))
        heads = (t.transpose(1, 2) for t in parts)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Mpt(nn.Module):
    """The loss of a batch of tokens."""

    def __init__(self, size: str, length: int) -> None:
        super().__init__()
        width, heads, depth = SIZES[size]
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def planned(
    size: str, length: int, num_gpus: int, gpu: str, batch: int, *, checkpoints: bool, pure: bool
) -> Plan:
    """The plan of a step of one micro-batch.

    Args:
        size: a key of SIZES.
        length: tokens of a sequence.
        num_gpus: over which parameters are sharded.
        gpu: the name of a profile.
        batch: sequences of a micro-batch on each GPU.
        checkpoints: whether blocks are recomputed.
        pure: whether gradients are reduced in bfloat16.
    """
    reduced = torch.bfloat16 if pure else torch.float32
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)

    def parallelize(model: Any, mesh: Any) -> None:
        if checkpoints:
            model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=precision)
        fully_shard(model, mesh=mesh, mp_policy=precision)

    return plan(
        lambda: Mpt(size, length),
        mesh_shape=num_gpus,
        parallelize=parallelize,
        inputs=lambda: torch.zeros(batch, length, dtype=torch.int64),
        loss=lambda loss: loss,
        optimizer="adamw",
        gpu=gpu,
    )
