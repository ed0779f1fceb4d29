"""Strategies that split what lies along the tokens: sequences, and the experts that they go to."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.distributed.parallelize.laid_out_models import (
    BOTH,
    SIZES,
    TENSOR_PLAN,
    case,
    deepseek,
    gpt_oss,
    llama,
    own_texts,
    qwen3_moe,
    texts,
)
from tests.distributed.parallelize.ring_on_cpu import in_ring_on_cpu
from tests.distributed.sharded_models import Case, Model
from torchfake.distributed import Strategy
from torchfake.distributed.parallelize.context_parallel import whole_sequences


def qwen3() -> nn.Module:
    """Norms of single heads."""
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8))


def gemma3() -> nn.Module:
    """A scaled embedding, four norms to a layer."""
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, head_dim=8))


def phi3() -> nn.Module:
    """Weights of several projections in one."""
    return Phi3ForCausalLM(Phi3Config(**SIZES, pad_token_id=0))


def olmo2() -> nn.Module:
    """Norms behind attention and MLP, and none in front."""
    return Olmo2ForCausalLM(Olmo2Config(**SIZES))


def cohere() -> nn.Module:
    """Attention and MLP side by side."""
    return CohereForCausalLM(CohereConfig(**SIZES))


OWN_PLAN = {**TENSOR_PLAN, "embedding": "embedding_rowwise", "head": "colwise_gather_output"}


def ring_case(build: Any, strategy: Strategy, rotation: str = "allgather", **options: Any) -> Case:
    """Sequences of 16 tokens, split along cp."""
    context = partial(in_ring_on_cpu, strategy.axes, rotation)
    made = case(build, whole_texts, strategy, **options)
    return made._replace(context=context, unlike_axes="cp")


def whole_texts() -> dict[str, torch.Tensor]:
    batch = {"input_ids": torch.randint(60, (2, 16)), "labels": torch.randint(60, (2, 16))}
    return whole_sequences(batch)


def routed(build: Callable[[], nn.Module]) -> nn.Module:
    """A model whose routers send every expert equally many tokens. In a plan, where the chosen
    numbers are not known, they stay so.
    """
    model: Any = build()
    config = model.config
    number = getattr(config, "num_experts", None) or getattr(config, "n_routed_experts", None)
    number = number or config.num_local_experts

    def evenly(module: nn.Module, args: Any) -> Any:
        tokens, chosen, weights = args
        in_turn = torch.arange(chosen.numel(), device=chosen.device).view_as(chosen) % number
        return tokens, torch.where(chosen < 0, chosen, in_turn), weights

    for name, part in model.named_modules():
        if name.endswith(".experts"):
            part.register_forward_pre_hook(evenly)
    return model


def routed_case(build: Any, strategy: Strategy, **options: Any) -> Case:
    made = case(partial(routed, build), texts, strategy, **options)
    return made._replace(routing="balanced")


SHIPS_RULES = importlib.util.find_spec("transformers.distributed.expert_parallel") is not None
"""Whether transformers has rules that split embeddings and experts: 5.20, the newest version for
Python 3.10, has none, and a plan that needs them says so."""

sequences: Any = partial(Strategy, sequence_parallel=True)

TOKENS = {
    "llama, sequences": case(
        partial(llama, num_key_value_heads=4), texts, sequences({"tp": 4}, "full", "fp32")
    ),
    "llama, sequences, mixed": case(llama, texts, sequences(BOTH, "selective")),
    "llama, tied, sequences": case(
        partial(llama, tie_word_embeddings=True), texts, sequences(BOTH, precision="fp32")
    ),
    "qwen3, sequences": case(qwen3, texts, sequences(BOTH, "full")),
    "gemma3, sequences": case(gemma3, texts, sequences(BOTH, "full", "fp32")),
    "phi3, sequences": case(phi3, texts, sequences(BOTH, precision="fp32")),
    "olmo2, sequences": case(olmo2, texts, sequences(BOTH, precision="fp32")),
    "cohere, sequences": case(cohere, texts, sequences(BOTH, precision="fp32")),
    "own, sequences": case(
        Model, own_texts, sequences(BOTH, "full", "fp32", tensor_plan=OWN_PLAN), optimizer="SGD"
    ),
    "qwen3 moe, sequences": case(qwen3_moe, texts, sequences(BOTH, "full", "fp32")),
    "deepseek, sequences": case(deepseek, texts, sequences(BOTH, precision="fp32")),
    "qwen3 moe, sequences, experts": routed_case(
        qwen3_moe, sequences({"ep": 2, "tp": 2}, "full", "fp32")
    ),
    "llama, ring": ring_case(llama, Strategy({"cp": 4}, precision="fp32")),
    "llama, ring, all-to-all": ring_case(llama, Strategy({"cp": 4}, precision="fp32"), "alltoall"),
    "llama, ring, fsdp": ring_case(llama, Strategy({"dp": 2, "cp": 2}, "full", "fp32")),
    "llama, ring, hybrid": ring_case(llama, Strategy({"replicate": 2, "cp": 2}, "selective")),
    "llama, ring, tensor": ring_case(llama, Strategy({"cp": 2, "tp": 2})),
    "llama, ring, sequences": ring_case(llama, sequences({"cp": 2, "tp": 2}, "full", "fp32")),
    "qwen3 moe, ring": ring_case(
        qwen3_moe, Strategy({"dp": 2, "cp": 2}, "full", "fp32"), accumulate=2
    ),
    "qwen3 moe, experts": routed_case(qwen3_moe, Strategy({"ep": 4}, precision="fp32")),
    "qwen3 moe, experts, fsdp": routed_case(qwen3_moe, Strategy({"dp": 2, "ep": 2}, "full")),
    "qwen3 moe, experts, accumulated": routed_case(
        qwen3_moe, Strategy({"dp": 2, "ep": 2}, "full", "fp32"), accumulate=2
    ),
    "qwen3 moe, experts, tensor": routed_case(
        qwen3_moe, Strategy({"ep": 2, "tp": 2}, precision="fp32")
    ),
    "deepseek, experts, hybrid": routed_case(
        deepseek, Strategy({"replicate": 2, "ep": 2}, "full", "fp32")
    ),
    "gpt oss, experts": routed_case(gpt_oss, Strategy({"dp": 2, "ep": 2}, "full", "fp32")),
}

if "embed_tokens" in (GptOssConfig.base_model_tp_plan or {}):  # since transformers 5.24
    TOKENS["gpt oss, sequences"] = case(gpt_oss, texts, sequences(BOTH, "full", "fp32"))
