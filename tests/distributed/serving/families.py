"""Small models of the families that are served."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    JambaConfig,
    JambaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def llama(**changes: Any) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))


def qwen3_moe(**changes: Any) -> nn.Module:
    """Norms of queries and keys, a mixture in each layer."""
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**SIZES, **experts, "head_dim": 8, **changes}))


def deepseek(**changes: Any) -> nn.Module:
    """Latent attention, a dense layer before those of experts, experts in groups."""
    experts = {"n_routed_experts": 8, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
    groups = {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
    ranks = {"kv_lora_rank": 16, "q_lora_rank": 32, "num_key_value_heads": 4}
    heads = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(**{**SIZES, **experts, **groups, **ranks, **heads, **changes})
    )


def gemma(**changes: Any) -> nn.Module:
    """Two layers with a window for each one without; tied embeddings."""
    more = {"head_dim": 8, "sliding_window": 32, "sliding_window_pattern": 3}
    return Gemma3ForCausalLM(Gemma3TextConfig(**{**SIZES, **more, **TOKENS, **changes}))


def jamba(**changes: Any) -> nn.Module:
    """Layers of attention among layers of states, mixtures among dense ones."""
    layers = {"attn_layer_period": 3, "attn_layer_offset": 1, "use_mamba_kernels": False}
    experts = {"num_experts": 4, "expert_layer_period": 2, "expert_layer_offset": 1}
    return JambaForCausalLM(
        JambaConfig(**{**SIZES, **layers, **experts, **TOKENS, "mamba_dt_rank": 4, **changes})
    )


def bamba(**changes: Any) -> nn.Module:
    layers = {"attn_layer_indices": [1, 4], "mamba_n_heads": 4, "mamba_d_head": 16}
    layers |= {"mamba_n_groups": 1, "mamba_d_state": 8}
    return BambaForCausalLM(BambaConfig(**{**SIZES, **layers, **TOKENS, **changes}))


def qwen2_vl(**changes: Any) -> nn.Module:
    """A vision tower, which has more layers than the decoder of text beside it."""
    text = {**SIZES, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}, **changes}
    vision = {"depth": 8, "embed_dim": 16, "num_heads": 2, "hidden_size": 32, "patch_size": 4}
    return Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            text_config=text, vision_config=vision, image_token_id=60, video_token_id=61,
            vision_start_token_id=62, vision_end_token_id=63,
        )
    )  # fmt: skip
