"""What the first line says of a step: what is trained, in which dtypes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchfake import estimate, fake_mode

IDLE = "the parameters have the dtype of autocast already: mixed precision keeps them in float32"


def first_line(module: nn.Module, **options: object) -> str:
    x = torch.empty(4, 8, dtype=next(module.parameters()).dtype, device="meta")
    found = estimate(module, x, optimizer="adamw", gpu="h100-80gb", **options)  # type: ignore[arg-type]
    return str(found).splitlines()[0]


def test_a_step_that_trains_some_parameters_says_how_many() -> None:
    with fake_mode():
        module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    assert "; training with adamw in fp32" in first_line(module)
    module[0].requires_grad_(False)
    assert "; training 18 params with adamw in fp32" in first_line(module)


def test_autocast_to_the_dtype_of_the_parameters_is_a_warning() -> None:
    with fake_mode():
        half, full = nn.Linear(8, 8).bfloat16(), nn.Linear(8, 8)
    for module, is_idle in ((half, True), (full, False)):
        x = torch.empty(4, 8, dtype=module.weight.dtype, device="meta")
        found = estimate(module, x, optimizer="adamw", autocast=torch.bfloat16, gpu="h100-80gb")
        assert any(text.startswith(IDLE) for text in found.counted.warnings) == is_idle
        assert (IDLE in str(found)) == is_idle
        assert found.to_dict()["warnings"] == [*found.counted.warnings]


def test_training_in_float16_is_said_to_converge_seldom() -> None:
    """Unless autocast keeps what is trained in float32."""
    with fake_mode():
        half, full = nn.Linear(8, 8).half(), nn.Linear(8, 8)
    said = "training with adamw in fp16, which seldom converges, "
    assert said in first_line(half)
    assert "seldom" not in first_line(full, autocast=torch.float16)
    x = torch.empty(4, 8, dtype=torch.float16, device="meta")
    found = estimate(half, x, optimizer="adamw", gpu="h100-80gb")
    assert any("--dtype fp32 --autocast fp16" in text for text in found.counted.warnings)
    assert not estimate(half, x, gpu="h100-80gb", mode="inference").counted.warnings


def test_a_model_of_text_and_images_that_is_given_text_alone_says_so() -> None:
    transformers = pytest.importorskip("transformers")
    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    heads = {"num_attention_heads": 2}
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama", **text, **heads, "num_key_value_heads": 2},
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
        },
    )  # fmt: skip
    with fake_mode():
        model = transformers.LlavaForConditionalGeneration(config)
        ids = torch.ones(1, 8, dtype=torch.long)
    alone = estimate(model, {"input_ids": ids}, gpu="t4-16gb")
    assert alone.counted.not_given == "images"
    assert alone.to_dict()["not_given"] == "images"
    assert ", seq 8, no images" in str(alone).splitlines()[0]
    text_model = estimate(model.model.language_model, {"input_ids": ids})
    assert text_model.counted.not_given == ""
