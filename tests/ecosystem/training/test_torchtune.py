"""torchtune: all builders of llama, mistral, gemma, qwen and phi on fakes; deferred as in eager."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchfake import deferred_init, fake_mode, is_fake, materialize_module

pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = (
    "code_llama2", "gemma", "gemma2", "llama2", "llama3", "llama3_1", "llama3_2", "llama3_3",
    "mistral", "phi3", "phi4", "qwen2", "qwen2_5",
)  # fmt: skip
SIZES = ("b", "mini")
SMALL = {
    "vocab_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "embed_dim": 32,
    "max_seq_len": 64,
}  # fmt: skip


def builders() -> Iterator[Any]:
    """The functions that build a model of a named size, and need nothing but LoRA's modules."""
    for family in FAMILIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torchtune, about itself
            module = importlib.import_module(f"torchtune.models.{family}")
        for name, function in vars(module).items():
            if inspect.isfunction(function) and name.endswith(SIZES) and "tokenizer" not in name:
                needed = [p.name for p in inspect.signature(function).parameters.values()
                          if p.default is p.empty]  # fmt: skip
                if needed in ([], ["lora_attn_modules"]):
                    options = {key: ["q_proj", "v_proj"] for key in needed}
                    yield pytest.param(function, options, id=f"{family}-{name}")


@pytest.mark.parametrize(("builder", "options"), list(builders()))
def test_built_and_run(builder: Any, options: dict[str, Any]) -> None:
    with fake_mode():
        model = builder(**options)
        out = model(torch.arange(16).view(2, 8))
    assert is_fake(model)
    assert out.shape[:2] == (2, 8)


@pytest.mark.parametrize(
    ("family", "name", "options"),
    [
        ("llama3_1", "llama3_1", {}),
        ("mistral", "mistral", {}),
        ("llama3_1", "lora_llama3_1", {"lora_attn_modules": ["q_proj"], "lora_rank": 2,
                                       "lora_alpha": 4}),
    ],
)  # fmt: skip
def test_deferred_as_in_eager(family: str, name: str, options: dict[str, Any]) -> None:
    build = getattr(importlib.import_module(f"torchtune.models.{family}"), name)
    options = {"intermediate_dim": 64, **options}
    torch.manual_seed(0)
    eager = build(**SMALL, **options)
    torch.manual_seed(0)
    model = materialize_module(deferred_init(build, **SMALL, **options))
    pairs = zip(model.state_dict().values(), eager.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    tokens = torch.arange(16).view(2, 8)
    assert torch.equal(model(tokens), eager(tokens))
