"""Small models of every kind of cache, and a greedy loop on real tensors that counts storages."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from tests.inspect.memory.memory_oracle import StorageCounter
from tests.inspect.small_models import cache_name
from torchfake.inspect.copies.workload import tensors_in

_ATTENTION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_MLA = {
    "q_lora_rank": 16, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}  # fmt: skip
_WINDOWS = ["sliding_attention", "full_attention"] * 2

SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "gpt2": ("GPT2LMHead", {"n_layer": 3, "n_embd": 32, "n_head": 4, "vocab_size": 60,
                            "bos_token_id": 1, "eos_token_id": 2}),
    "mistral": ("Mistral", {"sliding_window": 8}),
    "gemma3": ("Gemma3", {"sliding_window": 8, "head_dim": 8, "layer_types": _WINDOWS}),
    "gpt_oss": ("GptOss", {"sliding_window": 8, "head_dim": 8, "num_local_experts": 4,
                           "num_experts_per_tok": 2, "layer_types": _WINDOWS}),
    "deepseek_v3": ("DeepseekV3", _MLA),
    "deepseek_v2": ("DeepseekV2", {**_MLA, "topk_method": "greedy"}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mamba": ("Mamba", {"num_hidden_layers": 3, "hidden_size": 32, "state_size": 4,
                        "vocab_size": 60}),
    "mamba2": ("Mamba2", {"num_hidden_layers": 3, "hidden_size": 32, "state_size": 8,
                          "num_heads": 8, "head_dim": 8, "n_groups": 1, "vocab_size": 60,
                          "chunk_size": 8}),
    "falcon_h1": ("FalconH1", {"head_dim": 8, "mamba_d_ssm": 32, "mamba_n_heads": 4,
                               "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
                               "mamba_chunk_size": 8}),
    "jamba": ("Jamba", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
                        "use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4}),
    "minimax": ("MiniMax", {"num_local_experts": 4, "block_size": 8}),
    "qwen3_next": ("Qwen3Next", {"head_dim": 8, "linear_num_key_heads": 2,
                                 "linear_num_value_heads": 2, "linear_key_head_dim": 8,
                                 "linear_value_head_dim": 8, "num_experts": 4,
                                 "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                                 "shared_expert_intermediate_size": 16}),
}  # fmt: skip


def served_model(name: str) -> nn.Module:
    """The model, on real tensors."""
    import transformers

    prefix, options = SERVED[name]
    given = options if "num_hidden_layers" in options or "n_layer" in options else {
        **_ATTENTION, **options}  # fmt: skip
    family = prefix.removesuffix("LMHead")
    suffix = "TextConfig" if family == "Gemma3" else "Config"
    config = getattr(transformers, f"{family}{suffix}")(**given)
    suffix = "LMHeadModel" if prefix.endswith("LMHead") else "ForCausalLM"
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, f"{family}{suffix}")(config).eval()


def counted_loop(
    model: nn.Module, cache: Any, users: int, prompt: int, context: int, piece: int | None = None
) -> StorageCounter:
    """A greedy loop over all tokens; the counter after it."""
    held = [*model.parameters(), *model.buffers(), *tensors_in(cache)]
    counter = StorageCounter(held)
    name = cache_name(model)
    lengths = [piece or prompt] * (prompt // (piece or prompt))
    lengths += [prompt - sum(lengths)] if sum(lengths) < prompt else []
    with counter, torch.no_grad():
        for length in [*lengths, *[1] * (context - prompt)]:
            ids = torch.zeros(users, length, dtype=torch.long)
            output = model(input_ids=ids, **{name: cache}, use_cache=True, logits_to_keep=1)
            del output
    return counter
