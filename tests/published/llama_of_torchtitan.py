"""Llama 3 8B as torchtitan trains it: FSDP2, mixed precision, op-level selective checkpointing.

Its loop frees the logits before the backward pass, so the loss is computed in the forward here.
Torch of that time took FlashAttention on Hopper, whose result the policy saves, not cuDNN's.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from torchfake import plan, profiles
from torchfake.distributed import Plan

WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, DEPTH, VOCABULARY, INNER = 4096, 32, 8, 128, 32, 128256, 14336
LENGTH = 8192


def rotations() -> torch.Tensor:
    powers = torch.arange(0, HEAD_WIDTH, 2).float() / HEAD_WIDTH
    angles = torch.outer(torch.arange(LENGTH).float(), 500000.0**-powers)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * by[None, :, None, :]).flatten(3).type_as(x)


def repeated(x: torch.Tensor) -> torch.Tensor:
    batch, length, heads, width = x.shape
    groups = HEADS // KV_HEADS
    return (
        x[:, :, :, None, :]
        .expand(batch, length, heads, groups, width)
        .reshape(batch, length, heads * groups, width)
    )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        narrow = KV_HEADS * HEAD_WIDTH
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, narrow, bias=False)
        self.wv = nn.Linear(WIDTH, narrow, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, HEAD_WIDTH)) for p in (self.wq, self.wk, self.wv))
        q, k = rotated(q, by), rotated(k, by)
        heads = (t.transpose(1, 2) for t in (q, repeated(k), repeated(v)))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.wo(mixed.transpose(1, 2).contiguous().flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.w1 = nn.Linear(WIDTH, INNER, bias=False)
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, INNER, bias=False)
        self.attention_norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(WIDTH, eps=1e-5)

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), by)
        normed = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.register_buffer("by", rotations(), persistent=False)
        self.layers = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.by)
        logits = self.output(self.norm(h)).float()
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


_SAVED = {
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def contexts() -> Any:
    """Every second matrix product is recomputed."""
    products: Counter[bool] = Counter()

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        is_product = op == torch.ops.aten.mm.default
        products[context.is_recompute] += is_product
        is_saved = products[context.is_recompute] % 2 == 1 if is_product else op in _SAVED
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def parallelized(model: nn.Module, mesh: Any) -> nn.Module:
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, block in enumerate(model.layers):
        block = checkpoint_wrapper(block, context_fn=contexts, preserve_rng_state=False)
        is_last = i == len(model.layers) - 1
        fully_shard(block, mesh=mesh, mp_policy=precision, reshard_after_forward=not is_last)
        model.layers[i] = block
    return fully_shard(model, mesh=mesh, mp_policy=precision)


def planned(batch: int, num_gpus: int) -> Plan:
    """The plan of a step, on H100 with 96 GB."""
    return plan(
        Llama,
        mesh_shape=num_gpus,
        parallelize=parallelized,
        inputs=lambda: torch.zeros(batch, LENGTH, dtype=torch.int64),
        loss=lambda loss: loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
        gpu=profiles()["h100-80gb"]._replace(total_memory=96 << 30),
        allocator="expandable_segments:True",
    )
