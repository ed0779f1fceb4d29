"""Estimates against a real GPU: bytes allocated and reserved, and the time of a step.

Twelve models by five uses, each on a real model and on its fake: ``pytest -m gpu tests/inspect``.
Bounds are those of docs/memory.md and docs/time.md: 2 % of bytes allocated, 5 % of bytes reserved,
and twice the time, since models this small wait for the host.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchfake import estimate, fake_mode, profiles
from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.memory.estimate_record import Estimate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TEXT = {
    "hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16,
    "intermediate_size": 4096, "vocab_size": 32000,
}  # fmt: skip
SHORT = {**TEXT, "num_key_value_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": SHORT,
    "Qwen3ForCausalLM": SHORT,
    "MistralForCausalLM": {**SHORT, "sliding_window": 256},
    "Gemma2ForCausalLM": {**SHORT, "head_dim": 64},
    "GPT2LMHeadModel": {"n_embd": 1024, "n_layer": 6, "n_head": 16},
    "OPTForCausalLM": {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16,
                       "ffn_dim": 4096, "word_embed_proj_dim": 1024},
    "MixtralForCausalLM": {**SHORT, "num_local_experts": 4},
    "BertForMaskedLM": TEXT,
    "T5ForConditionalGeneration": {"d_model": 1024, "d_ff": 4096, "num_layers": 6,
                                   "decoder_start_token_id": 0},
    "ViTForImageClassification": {k: v for k, v in TEXT.items() if k != "vocab_size"},
    "ResNetForImageClassification": {},
    "WhisperForConditionalGeneration": {
        "d_model": 512, "encoder_layers": 4, "decoder_layers": 4,
        "encoder_attention_heads": 8, "decoder_attention_heads": 8,
    },
}  # fmt: skip
USES = ["forward", "training", "autocast", "checkpoint", "generation"]
STEPS = 3
"""Steps that are run before one is measured: the caching allocator has what it needs by then."""


def profile() -> CudaProfile:
    """The GPU that is here: one of the profiles, or made from its properties."""
    here = torch.cuda.get_device_properties(0)
    for known in profiles().values():
        if known.name == here.name:
            return known
    sizes = here.total_memory, here.major, here.minor, here.multi_processor_count
    return CudaProfile(here.name, *sizes, "torch.cuda.get_device_properties")


def build(name: str) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**MODELS[name]))


def inputs_of(name: str) -> dict[str, torch.Tensor]:
    ids = torch.ones(4, 512, dtype=torch.int64)
    if "Image" in name:
        return {"pixel_values": torch.zeros(8, 3, 224, 224), "labels": ids[:1, :8].flatten() * 0}
    if name.startswith("Whisper"):
        return {"input_features": torch.zeros(4, 80, 3000), "labels": ids[:, :64]}
    return {"input_ids": ids, "labels": ids}


def steps(use: str, model: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
    """What a program does in one step."""
    if use == "generation":
        ids = inputs["input_ids"][:, :128]
        options = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False}
        return lambda: model.generate(ids, **options)
    if use == "forward":
        model.eval()

        def forward() -> None:
            with torch.no_grad():
                model(**inputs)

        return forward
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=use == "autocast"):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def prepare(use: str, model: Any) -> Any:
    if use == "checkpoint":
        model.gradient_checkpointing_enable()
    return model.train(use not in ("forward", "generation"))


def measured(name: str, use: str) -> tuple[int, int, float]:
    """Peak bytes allocated and reserved of a step, and its seconds."""
    gc.collect()
    torch.cuda.empty_cache()
    torch._C._cuda_clearCublasWorkspaces()
    model = prepare(use, build(name)).to("cuda")
    step = steps(use, model, {key: value.to("cuda") for key, value in inputs_of(name).items()})
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    seconds = begin.elapsed_time(end) / 1000
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), seconds


def estimated(name: str, use: str) -> Estimate:
    with fake_mode(fake_cuda=profile(), answer="typical"):
        model = prepare(use, build(name)).to("cuda")
        inputs = {key: value.to("cuda") for key, value in inputs_of(name).items()}
        step = steps(use, model, inputs)
    return estimate(step, gpu=profile(), answer="typical")


def cases() -> list[tuple[str, str]]:
    """Models with their uses: what is no language model generates nothing from text."""
    speechless = ("Image", "MaskedLM", "Whisper")
    found = [(name, use) for name in MODELS for use in USES]
    found.remove(("ResNetForImageClassification", "checkpoint"))  # refused by transformers
    return [
        (name, use)
        for name, use in found
        if use != "generation" or not any(part in name for part in speechless)
    ]


@pytest.mark.parametrize(("name", "use"), cases())
def test_bytes_and_seconds(name: str, use: str, record_property: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        allocated, reserved, seconds = measured(name, use)
        found = estimated(name, use)
    figures = {
        "device": profile().name,
        "allocated": (allocated, found.peak_bytes),
        "reserved": (reserved, found.peak_reserved_bytes),
        "seconds": (seconds, found.step_seconds),
    }
    for key, value in figures.items():
        record_property(key, value)
    assert found.peak_bytes == pytest.approx(allocated, rel=0.02), figures
    assert found.peak_reserved_bytes == pytest.approx(reserved, rel=0.05), figures
    if found.step_seconds is not None:
        assert seconds / 2 < found.step_seconds < 2 * seconds, figures
