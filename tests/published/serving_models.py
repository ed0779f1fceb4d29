"""The models whose servers are compared: the class of transformers, and its config."""

from __future__ import annotations

from typing import Any

_LLAMA = {"max_position_embeddings": 131072}
_70B = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8,
}  # fmt: skip
_405B = {
    "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
    "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
_QWEN_MOE = {
    "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 4, "num_experts": 128,
    "num_experts_per_tok": 8,
}  # fmt: skip

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-J 6B": ("GPTJ", {}),
    "LLaMA 7B": ("Llama", _LLAMA),
    "LLaMA 70B": ("Llama", {**_LLAMA, **_70B}),
    "Llama 3.1 8B": ("Llama", {
        **_LLAMA, "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "Llama 3 70B": ("Llama", {**_LLAMA, **_70B, "vocab_size": 128256}),
    "Llama 3.3 70B": ("Llama", {**_LLAMA, **_70B, "vocab_size": 128256}),
    "Llama 3.1 405B": ("Llama", {**_LLAMA, **_405B}),
    "Llama 3.1 405B, 16 heads": ("Llama", {**_LLAMA, **_405B, "num_key_value_heads": 16}),
    "Qwen2.5 14B": ("Qwen2", {
        "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8}),
    "Qwen3-8B": ("Qwen3", {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "Qwen3-32B": ("Qwen3", {
        "vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 25600,
        "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128}),
    "Mixtral 8x7B": ("Mixtral", {}),
    "gpt-oss-20b": ("GptOss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "gpt-oss-120b": ("GptOss", {}),
    "DeepSeek-R1": ("DeepseekV3", {"max_position_embeddings": 163840}),
    "Qwen3-30B-A3B": ("Qwen3Moe", {
        **_QWEN_MOE, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
        "moe_intermediate_size": 768}),
    "Qwen3-235B-A22B": ("Qwen3Moe", {
        **_QWEN_MOE, "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
        "moe_intermediate_size": 1536}),
}  # fmt: skip
