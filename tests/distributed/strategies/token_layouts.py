"""Strategies that split what lies along the tokens: sequences, and the experts that they go to."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.distributed.sharded_models import Model
from tests.distributed.strategies.laid_out_models import (
    BOTH,
    SIZES,
    TENSOR_PLAN,
    case,
    llama,
    own_texts,
    texts,
)
from torchfake.distributed import Strategy


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
}
