"""Figures that others have measured or derived, and the function that estimates each.

Every row names its source. A row outside of its bound says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from tests.published import llamas, models, served, tuned_models
from torchfake import estimate, fake_mode, summary

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Row:
    """One figure."""

    source: str
    setting: str
    published: float
    unit: str
    estimated: Callable[[], float]
    bound: float  # how far the ratio may be from 1
    reason: str = ""  # where it is further
    is_quick: bool = True  # less than a second or two: in the suite

    def ratio(self) -> float:
        return self.estimated() / self.published


def activations_of_layer(hidden: int, heads: int, batch: int, recomputes: bool) -> float:
    """What two layers keep more than one, MiB."""
    kept = []
    for depth in (1, 2):
        with fake_mode():
            layers = (
                models.TransformerLayer(hidden, heads, recomputes_attention=recomputes)
                for _ in range(depth)
            )
            stack = nn.Sequential(*layers).bfloat16()
            x = torch.empty(batch, 2048, hidden, dtype=torch.bfloat16, requires_grad=True)
        timeline = estimate(stack, x, mode="forward", gpu="a100-80gb").timeline
        activations = timeline.num_bytes[:, timeline.categories.index("activations")]
        kept.append(int(activations[-3:].max()))
    return (kept[1] - kept[0]) / MIB


def octocoder_peak() -> float:
    model, inputs = models.octocoder()
    return estimate(model, inputs, gpu="a100-80gb", decode=(20, 60)).peak_bytes / GIB


def llama_cache(tokens: int) -> float:
    model, inputs = models.llama_8b()
    timeline = estimate(model, inputs, gpu="h100-80gb", decode=(tokens - 1, 1)).timeline
    return int(timeline.num_bytes[:, timeline.categories.index("kv cache")].max()) / GIB


def gpt2_flops() -> float:
    model, inputs = models.gpt2()
    return summary(model, inputs).flops[""].forward


def bert_reserved(
    batch: int,
    *,
    adafactor: bool = False,
    half: bool = False,
    accumulate: int = 1,
    checkpoints: bool = False,
) -> float:
    step = models.bert_step(
        batch, adafactor=adafactor, half=half, accumulate=accumulate, checkpoints=checkpoints
    )
    reserved = estimate(step, gpu="v100-32gb").peak_reserved_bytes
    assert reserved is not None
    return reserved / MIB


def torchtitan_reserved() -> float:
    layout = ("Llama 3.1 8B", {"dp": 8}, 2, 8192, llamas.H100_OF_96_GB)
    reserved = llamas.planned(*layout, checkpoint="selective").peak_reserved_bytes
    assert reserved is not None
    return reserved / GIB


def litgpt_peak(name: str, length: int, batch: int = 1, quantize: str | None = None) -> float:
    step = tuned_models.litgpt_lora(name, length, batch, quantize)
    return estimate(step, gpu="a100-40gb").peak_bytes / 1e9


def torchtune_peak() -> float:
    return estimate(tuned_models.llama_3b_full(2, 4096), gpu="a100-80gb").peak_bytes / GIB


def torchtune_initial() -> float:
    size = summary(tuned_models.llama_3b_lora()).tree.size
    return (size.parameter_bytes + size.buffer_bytes) / GIB


LITGPT = "litgpt, resource tables (2023), LoRA, A100, max_memory_allocated"
_TUNED = (("phi-1.5, 1 x 1,044", 4.82, ("phi-1_5", 1044)),
          ("phi-1.5, 4 x 1,044", 10.68, ("phi-1_5", 1044, 4)),
          ("phi-1.5, 1 x 1,044, nf4", 3.78, ("phi-1_5", 1044, 1, "nf4")),
          ("StableLM 3B, 1 x 1,034", 9.69, ("stablelm-base-alpha-3b", 1034)),
          ("Llama 2 7B, 1 x 1,304", 21.30, ("Llama-2-7b-hf", 1304)),
          ("Llama 2 7B, 1 x 1,304, nf4", 14.14, ("Llama-2-7b-hf", 1304, 1, "nf4")),
          ("Llama 2 13B, 1 x 1,304", 38.12, ("Llama-2-13b-hf", 1304)))  # fmt: skip
KORTHIKANTI = "Korthikanti et al. 2022, eq. 1 and 6"
_LAYERS = (("22B", 6144, 64, 4, 6752, 1632), ("175B", 12288, 96, 1, 2736, 816),
           ("530B", 20480, 128, 1, 3920, 1360), ("1T", 25600, 160, 1, 4900, 1700))  # fmt: skip
_INSIGHTS = "DeepSeek-AI 2025, Insights into DeepSeek-V3, table 1"
_VLLM = "vLLM, issue 10517, its log"
TRAINER = "transformers, perf_train_gpu_one (2022), V100, nvidia-smi less 1,343 MB"

ROWS = [
    *(
        Row(KORTHIKANTI, f"{name}, a layer's activations{text}", size, "MiB", compute, 0.02)
        for name, hidden, heads, batch, whole, selective in _LAYERS
        for text, size, compute in (
            ("", whole, partial(activations_of_layer, hidden, heads, batch, False)),
            (", attention recomputed", selective,
             partial(activations_of_layer, hidden, heads, batch, True)),
        )
    ),
    Row("transformers, LLM optimization tutorial, max_memory_allocated",
        "OctoCoder bf16, prompt 20, 60 new tokens", 29.026, "GiB", octocoder_peak, 0.02),
    *(
        Row("Hugging Face blog, llama31", f"Llama 3.1 8B, cache of {tokens:,} tokens", size, "GiB",
            partial(llama_cache, tokens), 0.02)
        for tokens, size in ((1024, 0.125), (16000, 1.95), (128000, 15.62))
    ),
    *(
        Row("Hugging Face blog, llama31", f"Llama 3.1 70B, cache of {tokens:,} tokens", size, "GiB",
            partial(served.cache_gib, "Llama 3.1 70B", tokens), 0.02, "", False)
        for tokens, size in ((1024, 0.313), (16000, 4.88), (128000, 39.06))
    ),
    *(
        Row(_INSIGHTS, f"{name}, cache of a token, bf16", size, "kB",
            partial(served.kilobytes_per_token, name), 0.0, "", False)
        for name, size in (("DeepSeek-V3", 70.272), ("Qwen2.5 72B", 327.68),
                           ("Llama 3.1 405B", 516.096))
    ),
    Row(_VLLM, "Llama 3.1 8B, blocks of 16 tokens in 3.81 GiB", 1952, "blocks",
        partial(served.blocks_in, "Llama 3.1 8B", 3.81), 0.02),
    *(
        Row(_VLLM, f"Llama 3.1 8B, weights and a pass over {tokens:,} tokens", size, "GiB",
            partial(served.peak_beside_the_cache, "Llama 3.1 8B", tokens), 0.02, "", False)
        for tokens, size in ((20000, 17.06), (29000, 17.98))
    ),
    *(
        Row(source, f"{name}, {what}", size, "billion", count, 0.02, "", name == "Qwen3-30B-A3B")
        for source, name, whole, active, count_active in (
            ("Jiang et al. 2024", "Mixtral 8x7B", 46.7, 12.9, served.billions_active),
            ("DeepSeek-AI 2024", "DeepSeek-V3", 671, 37, served.billions_active),
            ("Qwen3's model card", "Qwen3-30B-A3B", 30.5, 3.3, served.billions_active),
            ("gpt-oss' model card, active without the embedding", "gpt-oss-120b", 116.83, 5.13,
             partial(served.billions_active, embedding=False)),
        )
        for what, size, count in (
            ("parameters", whole, partial(served.billions, name)),
            ("active parameters", active, partial(count_active, name)),
        )
    ),
    Row("PaLM's formula (Chowdhery et al. 2022) as torchtitan has it",
        "Llama 3 8B, 8,192 tokens, model FLOPs of a token", 57_910_000_000, "FLOPs",
        partial(served.model_flops_per_token, "Llama 3.1 8B", 8192), 0.001),
    Row("nanoGPT, transformer_sizing", "GPT-2, 1,024 tokens, forward", 291_648_307_200, "FLOPs",
        gpt2_flops, 0.0),
    Row("torchtitan, llama3_h100_202412, reserved",
        "Llama 3 8B, FSDP2 on 8 H100, 2 x 8,192, selective checkpointing, eager", 82.4, "GiB",
        torchtitan_reserved, 0.05, "", False),
    Row(TRAINER, "BERT-large, 4 x 512, fp32, reserved", 13606, "MiB",
        partial(bert_reserved, 4), 0.05, "", False),
    Row(TRAINER, "the same, fp16", 12596, "MiB",
        partial(bert_reserved, 4, half=True), 0.05, "", False),
    Row(TRAINER, "the same, Adafactor", 10952, "MiB",
        partial(bert_reserved, 4, adafactor=True), 0.05, "", False),
    Row(TRAINER, "BERT-large, 1 x 512, 4 accumulated", 7338, "MiB",
        partial(bert_reserved, 1, accumulate=4), 0.05, "", False),
    Row(TRAINER, "the same with checkpointing", 5432, "MiB",
        partial(bert_reserved, 1, accumulate=4, checkpoints=True), 0.05, "", False),
    Row("torchtune, README (November 2024), A100, peak active",
        "Llama 3.2 3B, 2 x 4,096 packed, fused AdamW", 60.0, "GiB",
        torchtune_peak, 0.02, "", False),
    Row("torchtune, end-to-end workflow", "Llama 3.2 3B, LoRA, model made", 6.21, "GiB",
        torchtune_initial, 0.02, "", False),
    *(
        Row(LITGPT, setting, size, "GB", partial(litgpt_peak, *args), 0.02, "", False)
        for setting, size, args in _TUNED
    ),
]  # fmt: skip
