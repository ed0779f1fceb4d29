"""Estimates of caches, of servers, of active parameters and of model FLOPs."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import nn

from tests.published import models
from torchfake import Serve, estimate, example_inputs, fake_mode, summary
from torchfake.inspect import Estimate

GIB = 2**30


@cache
def model(name: str) -> nn.Module:
    """In bfloat16, on fakes; all its sizes are those of its published config."""
    import transformers

    if name == "Llama 3.1 8B":
        return models.llama_8b()[0]
    family, options = CONFIGS[name]
    config = getattr(transformers, f"{family}Config")(**options)
    with fake_mode():
        made: nn.Module = getattr(transformers, f"{family}ForCausalLM")(config).bfloat16()
    return made


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3.1 70B": ("Llama", {
        "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "max_position_embeddings": 131072}),
    "Llama 3.1 405B": ("Llama", {
        "vocab_size": 128256, "hidden_size": 16384, "intermediate_size": 53248,
        "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8,
        "max_position_embeddings": 131072}),
    "Qwen2.5 72B": ("Qwen2", {
        "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}),
    "DeepSeek-V3": ("DeepseekV3", {}),
    "Mixtral 8x7B": ("Mixtral", {}),
    "Qwen3-30B-A3B": ("Qwen3Moe", {
        "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 4, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8}),
    "gpt-oss-120b": ("GptOss", {
        "num_hidden_layers": 36, "num_local_experts": 128, "num_experts_per_tok": 4}),
}  # fmt: skip


def served(name: str, serve: Serve) -> Estimate:
    return estimate(model(name), serve=serve)


def cache_gib(name: str, tokens: int) -> float:
    """Of a cache in blocks."""
    found = served(name, Serve(tokens, prefill=16)).cache
    assert found is not None
    return found.num_bytes / GIB


def kilobytes_per_token(name: str) -> float:
    found = served(name, Serve(16)).cache
    assert found is not None
    return found.bytes_per_token / 1000


def blocks_in(name: str, gibibytes: float) -> float:
    return gibibytes / cache_gib(name, 16)


def peak_beside_the_cache(name: str, tokens: int) -> float:
    """GiB of weights and of a pass over so many tokens, as vLLM's profiling run has them."""
    found = served(name, Serve(tokens, prompt=tokens - 1))
    assert found.cache is not None
    return (found.peak_bytes - found.cache.num_bytes) / GIB


def billions_active(name: str, *, embedding: bool = True) -> float:
    found = summary(model(name)).active
    assert found is not None
    left_out = 0 if embedding else model(name).get_input_embeddings().weight.numel()
    return (found.num_parameters - left_out) / 1e9


def billions(name: str) -> float:
    return summary(model(name)).tree.size.num_parameters / 1e9


def model_flops_per_token(name: str, length: int) -> float:
    inputs = example_inputs(model(name), batch=1, seq=length)
    return summary(model(name), inputs, gpu="h100-80gb").flops[""].model / length
