"""Small models of many kinds, and strategies that lay them out over four ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from tests.distributed.sharded_models import Case, Model
from torchfake._torch.distributed.training import zero_optimizer_class
from torchfake.distributed import Strategy

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}


def llama(**changes: Any) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))


def llama_of_a_whole_embedding() -> nn.Module:
    """By its rules for tensor parallelism, each rank has all of the embedding."""
    model: Any = llama()
    rules = {name: rule for name, rule in model.tp_plan.items() if "embed_tokens" not in name}
    model._tp_plan = rules
    return model  # type: ignore[no-any-return]


def qwen3_moe() -> nn.Module:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts, head_dim=8))


def deepseek() -> nn.Module:
    """Latent attention, a dense layer before those of experts, experts in groups."""
    experts = {"n_routed_experts": 8, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
    groups = {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
    ranks = {"kv_lora_rank": 16, "q_lora_rank": 32, "num_key_value_heads": 4}
    heads = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(**{**SIZES, **experts, **groups, **ranks, **heads})
    )


def gpt_oss() -> nn.Module:
    """Attention sinks, and experts with biases."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    return GptOssForCausalLM(GptOssConfig(**SIZES, **experts))


def gpt2() -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=16)
    )


def t5() -> nn.Module:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(vocab_size=64, decoder_start_token_id=0, **sizes))


def vit() -> nn.Module:
    sizes = {key: SIZES[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    config = ViTConfig(**sizes, num_attention_heads=4, image_size=16, patch_size=8, num_labels=3)
    return ViTForImageClassification(config)


class Stage(nn.Module):
    """Blocks of one width, and a layer that changes it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.down = nn.Conv2d(width, 2 * width, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.blocks(x))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(self.norm(x)).relu()


class Vision(nn.Module):
    """A model of one's own, with stages of unlike widths; its loss is its output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.stages = nn.ModuleList((Stage(8, 2), Stage(16, 3)))
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3))).logsumexp(1).mean()


TENSOR_PLAN = {
    "layers.*.attention.q": "colwise",
    "layers.*.attention.k": "colwise",
    "layers.*.attention.v": "colwise",
    "layers.*.attention.o": "rowwise",
    "layers.*.up": "colwise",
    "layers.*.down": "rowwise",
}


def texts() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(60, (2, 12)), "labels": torch.randint(60, (2, 12))}


def own_texts() -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(60, (2, 12)), "labels": torch.randint(60, (2, 12))}


def images() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(2, 3, 16, 16)}


def labelled_images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.randint(3, (2,))}


def case(
    build: Callable[[], nn.Module], inputs: Callable[[], Any], strategy: Strategy, **options: Any
) -> Case:
    names = {"inputs": inputs, "names": strategy.mesh_dim_names, "autocast": strategy.autocast}
    return Case(strategy.mesh_shape, strategy, build, **names, **options)


def fsdp1_on_cpu(strategy: Strategy) -> Callable[[Any, Any], Any]:
    """The same, where FSDP1 would ask for an accelerator."""
    on_cpu = partial(FullyShardedDataParallel, device_id=torch.device("cpu"))

    def lay_out(model: Any, mesh: Any) -> Any:
        with patch.object(torch.distributed.fsdp, "FullyShardedDataParallel", on_cpu):
            return strategy(model, mesh)

    return lay_out


def engine_case(strategy: Strategy, **options: Any) -> Case:
    """A case of DDP or FSDP1."""
    found = case(llama, texts, strategy, counts_all=True, **options)
    is_flat = strategy.engine == "fsdp1"
    return found._replace(parallelize=fsdp1_on_cpu(strategy)) if is_flat else found


FSDP, BOTH = {"dp": 4}, {"dp": 2, "tp": 2}
HYBRID = {"replicate": 2, "shard": 2}

ZERO_1 = Strategy(FSDP, precision="fp32", zero=1, engine="ddp")

LAID_OUT = {
    "llama, fsdp": case(llama, texts, Strategy(FSDP)),
    "llama, fsdp, selective": case(llama, texts, Strategy(FSDP, "selective")),
    "llama, fsdp, full": case(llama, texts, Strategy(FSDP, "full", "fp32")),
    "llama, fsdp, a way for each block": case(llama, texts, Strategy(FSDP, "full:0,selective:1")),
    "llama, zero 2": case(llama, texts, Strategy(FSDP, precision="fp32", zero=2)),
    "llama, hybrid, full": case(llama, texts, Strategy(HYBRID, "full")),
    "llama, replicas": case(llama, texts, Strategy({"ddp": 4}, precision="fp32")),
    "llama, tp before dp": case(llama, texts, Strategy({"tp": 2, "dp": 2}, precision="fp32")),
    "llama, both": case(llama, texts, Strategy(BOTH, precision="fp32")),
    "llama, both, mixed, selective": case(llama, texts, Strategy(BOTH, "selective")),
    "llama, both, full": case(llama, texts, Strategy(BOTH, "full", "fp32")),
    "llama, tied, both": case(
        partial(llama, tie_word_embeddings=True), texts, Strategy(BOTH, precision="fp32")
    ),
    "llama, tensor alone": case(
        partial(llama, num_key_value_heads=4), texts, Strategy({"tp": 4}, precision="fp32")
    ),
    "llama, tensor alone, mixed": case(
        partial(llama, num_key_value_heads=4), texts, Strategy({"tp": 4}, "full")
    ),
    "qwen3 moe, fsdp": case(qwen3_moe, texts, Strategy(FSDP, precision="fp32")),
    "qwen3 moe, both": case(qwen3_moe, texts, Strategy(BOTH, precision="fp32")),
    "qwen3 moe, both, selective": case(qwen3_moe, texts, Strategy(BOTH, "selective", "fp32")),
    "deepseek, both, full": case(deepseek, texts, Strategy(BOTH, "full", "fp32")),
    "gpt oss, both, full": case(gpt_oss, texts, Strategy(BOTH, "full", "fp32")),
    "llama, both, accumulated": case(llama, texts, Strategy(BOTH, "selective"), accumulate=3),
    "gpt2, fsdp, selective": case(gpt2, texts, Strategy(FSDP, "selective", "fp32")),
    "t5, fsdp, full": case(t5, texts, Strategy(FSDP, "full", "fp32")),
    "t5, hybrid": case(t5, texts, Strategy(HYBRID, precision="fp32")),
    "vit, fsdp": case(vit, labelled_images, Strategy(FSDP, "selective", "fp32")),
    "own vision, fsdp": case(Vision, images, Strategy(FSDP, "full", "fp32")),
    "llama, ddp, full": engine_case(Strategy(FSDP, "full", engine="ddp")),
    "llama, zero 1": engine_case(
        ZERO_1, optimizer=partial(zero_optimizer_class(), optimizer_class=torch.optim.AdamW)
    ),
    "llama, fsdp1": engine_case(Strategy(FSDP, engine="fsdp1")),
    "llama, fsdp1, full": engine_case(Strategy(FSDP, "full", engine="fsdp1")),
    "llama, fsdp1, selective": engine_case(Strategy(FSDP, "selective", "fp32", engine="fsdp1")),
    "llama, fsdp1, zero 2": engine_case(Strategy(FSDP, precision="fp32", zero=2, engine="fsdp1")),
    "llama, hybrid fsdp1": engine_case(Strategy(HYBRID, engine="fsdp1")),
    "llama, hybrid fsdp1, zero 2": engine_case(Strategy(HYBRID, zero=2, engine="fsdp1")),
    "own, both": case(
        Model, own_texts, Strategy(BOTH, "full", "fp32", tensor_plan=TENSOR_PLAN), optimizer="SGD"
    ),
}
