"""Llamas as torchtitan, fms-fsdp and KempnerForge train them: FSDP2 of each block, mixed precision.

They free the logits before the backward pass, so the loss is computed in the forward here. Torch of
that time took FlashAttention on Hopper, whose result torchtitan's policy saves, not cuDNN's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from torchfake import plan, profiles
from torchfake._core.gpu_profiles import CudaProfile
from torchfake.distributed import Plan

HEAD_WIDTH = 128
H100_OF_96_GB = profiles()["h100-80gb"]._replace(total_memory=96 << 30)


Norm = Callable[[int], nn.Module]


class Sizes(NamedTuple):
    """Of a model, whose heads are 128 wide."""

    width: int
    kv_heads: int
    depth: int
    inner: int
    vocabulary: int


SIZES = {
    "Llama 3.1 8B": Sizes(4096, 8, 32, 14336, 128256),
    "Llama 3 8B": Sizes(4096, 8, 32, 14336, 128256),
    "Llama 3 13B": Sizes(5120, 8, 40, 17920, 128256),
    "Llama 3 70B": Sizes(8192, 8, 80, 28672, 128256),
    "Llama 2 7B": Sizes(4096, 32, 32, 11008, 32000),
    "Llama 2 13B": Sizes(5120, 40, 40, 13824, 32000),
    "Llama 2 34B": Sizes(8192, 8, 48, 22016, 32000),
    "Llama 2 70B": Sizes(8192, 8, 80, 28672, 32000),
}


def rotations(length: int) -> torch.Tensor:
    powers = torch.arange(0, HEAD_WIDTH, 2).float() / HEAD_WIDTH
    angles = torch.outer(torch.arange(length).float(), 500000.0**-powers)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * by[None, :, None, :]).flatten(3).type_as(x)


def repeated(x: torch.Tensor, groups: int) -> torch.Tensor:
    if groups == 1:
        return x
    batch, length, heads, width = x.shape
    return (
        x[:, :, :, None, :]
        .expand(batch, length, heads, groups, width)
        .reshape(batch, length, heads * groups, width)
    )


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, narrow = sizes.width, sizes.kv_heads * HEAD_WIDTH
        self.groups = width // narrow
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, narrow, bias=False)
        self.wv = nn.Linear(width, narrow, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, HEAD_WIDTH)) for p in (self.wq, self.wk, self.wv))
        q, k = rotated(q, by), rotated(k, by)
        k, v = repeated(k, self.groups), repeated(v, self.groups)
        heads = (t.transpose(1, 2) for t in (q, k, v))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.wo(mixed.transpose(1, 2).contiguous().flatten(2))


class Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1 = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.w2 = nn.Linear(sizes.inner, sizes.width, bias=False)
        self.w3 = nn.Linear(sizes.width, sizes.inner, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class WrittenOutNorm(nn.Module):
    """RMSNorm as fms has it: an operator after the other, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.type_as(x)


class Block(nn.Module):
    def __init__(self, sizes: Sizes, norm: Norm) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(sizes), Mlp(sizes)
        self.attention_norm, self.ffn_norm = norm(sizes.width), norm(sizes.width)

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), by)
        return h + self.mlp(self.ffn_norm(h))


class Llama(nn.Module):
    def __init__(self, sizes: Sizes, length: int, norm: Norm = nn.RMSNorm) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(sizes.vocabulary, sizes.width)
        self.register_buffer("by", rotations(length), persistent=False)
        self.layers = nn.ModuleList(Block(sizes, norm) for _ in range(sizes.depth))
        self.norm = norm(sizes.width)
        self.output = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

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


_SPLIT, _JOINED = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
_BLOCK_PLAN = {  # KempnerForge's: each product that is split gathers the sequence for itself
    "attention_norm": SequenceParallel(),
    "attention.wq": _SPLIT,
    "attention.wk": _SPLIT,
    "attention.wv": _SPLIT,
    "attention.wo": _JOINED,
    "ffn_norm": SequenceParallel(),
    "mlp.w1": _SPLIT,
    "mlp.w3": _SPLIT,
    "mlp.w2": _JOINED,
}
_ROOT_PLAN = {
    "embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def parallelized(
    model: Any, mesh: Any, *, checkpoint: str, reduced: torch.dtype = torch.float32
) -> nn.Module:
    """Over the axes tp and, if there are any, others, of which the last one shards."""
    axes = [name for name in mesh.mesh_dim_names if name != "tp"]
    if "tp" in mesh.mesh_dim_names:
        parallelize_module(model, mesh["tp"], _ROOT_PLAN)
        for block in model.layers:
            parallelize_module(block, mesh["tp"], _BLOCK_PLAN)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
    wrapped = partial(checkpoint_wrapper, preserve_rng_state=False)
    for i, block in enumerate(model.layers):
        if checkpoint == "full" or (checkpoint == "every second block" and i % 2):
            block = wrapped(block)
        elif checkpoint == "selective":
            block = wrapped(block, context_fn=contexts)
        model.layers[i] = block
        if axes:
            options = {"mesh": mesh[tuple(axes)], "mp_policy": precision}
            is_last = i == len(model.layers) - 1
            fully_shard(block, **options, reshard_after_forward=not is_last)
    return fully_shard(model, **options) if axes else model


def planned(
    name: str,
    mesh: dict[str, int],
    batch: int,
    length: int,
    gpu: str | CudaProfile,
    *,
    checkpoint: str,
    reduced: torch.dtype = torch.float32,
    accumulate: int = 1,
    norm: Norm = nn.RMSNorm,
    is_pure: bool = False,
) -> Plan:
    """The plan of a step.

    Args:
        name: a key of SIZES.
        mesh: sizes of the axes.
        batch: sequences of a micro-batch on each data rank.
        length: tokens of each.
        gpu: a profile, or its name.
        checkpoint: none, selective (of operators), every second block, or full.
        reduced: the dtype in which gradients are reduced.
        accumulate: micro-batches.
        norm: makes a norm.
        is_pure: whether parameters are of bfloat16.
    """

    def build() -> nn.Module:
        model = Llama(SIZES[name], length, norm)
        by = model.by
        if is_pure:
            model.bfloat16().by = by  # of complex numbers
        return model

    return plan(
        build,
        mesh_shape=tuple(mesh.values()),
        mesh_dim_names=tuple(mesh),
        parallelize=partial(parallelized, checkpoint=checkpoint, reduced=reduced),
        inputs=lambda: torch.zeros(batch, length, dtype=torch.int64),
        loss=lambda loss: loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
        gpu=gpu,
        allocator="expandable_segments:True",
        accumulate=accumulate,
    )
