"""Small models and how they are sharded over four ranks: what a plan and a real run are given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from torchfake._torch.distributed.training import zero_optimizer_class


class Attention(nn.Module):
    """Heads are as many as there are in the local shards."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, self.head_width).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 8)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A decoder; its loss is its output."""

    def __init__(self, vocabulary: int = 64, width: int = 32, inner: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, inner) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def uneven() -> nn.Module:
    """No size of it is a multiple of four."""
    return Model(vocabulary=63, width=40, inner=61)


def fsdp(model: Any, mesh: Any, **options: Any) -> None:
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def fsdp_keeping(model: Any, mesh: Any) -> None:
    """Unsharded parameters are kept from the forward to the backward pass."""
    fsdp(model, mesh, reshard_after_forward=False)


def fsdp_mixed(model: Any, mesh: Any) -> None:
    fsdp(model, mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def fsdp_checkpointed(model: Any, mesh: Any) -> None:
    for i, layer in enumerate(model.layers):
        model.layers[i] = checkpoint_wrapper(layer)
    fsdp(model, mesh)


_TENSOR = {
    "attention.q": ColwiseParallel,
    "attention.k": ColwiseParallel,
    "attention.v": ColwiseParallel,
    "attention.o": RowwiseParallel,
    "up": ColwiseParallel,
    "down": RowwiseParallel,
}


def tensor(model: Any, mesh: Any) -> None:
    for layer in model.layers:
        parallelize_module(layer, mesh, {name: style() for name, style in _TENSOR.items()})


def vocabulary(model: Any, mesh: Any) -> None:
    """The embedding and the head too."""
    tensor(model, mesh)
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Replicate()),
        },
    )


def sequence(model: Any, mesh: Any) -> None:
    """Between the layers each rank has a part of the sequence."""
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.layers:
        styles: dict[str, Any] = {name: style() for name, style in _TENSOR.items()}
        styles |= {
            "norm1": SequenceParallel(),
            "norm2": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "attention.o": RowwiseParallel(output_layouts=Shard(1)),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, styles)


def two_dimensional(model: Any, mesh: Any) -> None:
    tensor(model, mesh["tp"])
    fsdp(model, mesh["dp"])


class Normed(Model):
    """It has buffers, and a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12)
        self.unused = nn.Linear(32, 32)


def replicas(**options: Any) -> Callable[[Any, Any], Any]:
    """DDP along the first axis of the mesh."""

    def wrap(model: Any, mesh: Any) -> Any:
        group = mesh.get_group(mesh.mesh_dim_names[0])
        return DistributedDataParallel(model, process_group=group, **options)

    return wrap


def fsdp1(**options: Any) -> Callable[[Any, Any], Any]:
    """FSDP1, the blocks one at a time."""

    def wrap(model: Any, mesh: Any) -> Any:
        policy = ModuleWrapPolicy({Block})
        return FullyShardedDataParallel(
            model,
            device_mesh=mesh,
            auto_wrap_policy=policy,
            device_id=torch.device("cpu"),
            **options,
        )

    return wrap


class Case(NamedTuple):
    """A model, how it is sharded over four ranks, and a step."""

    shape: tuple[int, ...]
    parallelize: Callable[[Any, Any], Any]
    build: Callable[[], nn.Module] = Model
    optimizer: Any = "AdamW"  # a name, or a function of the parameters
    accumulate: int = 1
    keep_gradients: bool = False
    inputs: Callable[[], Any] | None = None  # of one rank; those below, if None
    names: tuple[str, ...] = ()  # of the axes; dp and tp, if empty
    autocast: torch.dtype | None = None
    counts_all: bool = False  # what is there before the first step: buckets of gradients
    context: Callable[[Any, Any], Any] | None = None  # of a micro-batch, for the mesh and inputs
    unlike_axes: str = ""
    routing: str | None = None


CASES = {
    "fsdp": Case((4,), fsdp),
    "fsdp accumulated": Case((4,), fsdp, Model, "SGD", 2),
    "fsdp accumulated, gradients kept": Case((4,), fsdp, Model, "SGD", 2, True),
    "fsdp of uneven sizes": Case((4,), fsdp, uneven),
    "fsdp that keeps": Case((4,), fsdp_keeping),
    "fsdp in mixed precision": Case((4,), fsdp_mixed),
    "fsdp with checkpoints": Case((4,), fsdp_checkpointed),
    "hybrid": Case((2, 2), fsdp, uneven, "SGD"),
    "tensor parallel": Case((4,), tensor),
    "vocabulary parallel": Case((4,), vocabulary),
    "sequence parallel": Case((4,), sequence),
    "both": Case((2, 2), two_dimensional),
    "both of uneven sizes": Case((2, 2), two_dimensional, lambda: Model(63, 32, 66)),
}

_FSDP1: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fsdp1": ({}, {}),
    "fsdp1 that keeps": ({"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}, {"build": uneven}),
    "fsdp1 in mixed precision": (
        {"mixed_precision": MixedPrecision(torch.bfloat16, torch.float32)},
        {"accumulate": 2},
    ),
    "hybrid fsdp1": (
        {"sharding_strategy": ShardingStrategy.HYBRID_SHARD},
        {"shape": (2, 2), "build": uneven},
    ),
}
CASES |= {
    name: Case(**{"shape": (4,), "parallelize": fsdp1(**of_fsdp), "counts_all": True, **options})
    for name, (of_fsdp, options) in _FSDP1.items()
}

_SMALL = 0.01  # MiB of a bucket
_REPLICAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ddp": ({}, {}),
    "ddp in small buckets": ({"bucket_cap_mb": _SMALL}, {}),
    "ddp of unused parameters": (
        {"bucket_cap_mb": _SMALL, "find_unused_parameters": True},
        {"build": Normed},
    ),
    "ddp in views": ({"bucket_cap_mb": _SMALL, "gradient_as_bucket_view": True}, {}),
    "ddp in views, accumulated, gradients kept": (
        {"bucket_cap_mb": _SMALL, "gradient_as_bucket_view": True},
        {"optimizer": "SGD", "accumulate": 2, "keep_gradients": True},
    ),
    "ddp accumulated": ({"bucket_cap_mb": _SMALL}, {"optimizer": "SGD", "accumulate": 2}),
    "ddp of a static graph": ({"bucket_cap_mb": _SMALL, "static_graph": True}, {"build": Normed}),
    "ddp of uneven sizes": ({"bucket_cap_mb": _SMALL}, {"build": uneven, "shape": (2, 2)}),
    "zero 1": (
        {},
        {"build": uneven, "optimizer": partial(zero_optimizer_class(), optimizer_class=AdamW)},
    ),
    "ddp under autocast": ({}, {"autocast": torch.bfloat16}),
    "ddp in views of unused parameters": (
        {"gradient_as_bucket_view": True, "find_unused_parameters": True},
        {"build": Normed},
    ),
    "ddp of a static graph, in views": (
        {"gradient_as_bucket_view": True, "static_graph": True},
        {"build": Normed, "keep_gradients": True},
    ),
}
CASES |= {
    name: Case(**{"shape": (4,), "parallelize": replicas(**of_ddp), "counts_all": True, **options})
    for name, (of_ddp, options) in _REPLICAS.items()
}


def inputs() -> dict[str, torch.Tensor]:
    """Of one rank."""
    return {"tokens": torch.randint(60, (2, 12)), "labels": torch.randint(60, (2, 12))}
