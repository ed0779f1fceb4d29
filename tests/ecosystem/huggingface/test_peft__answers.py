"""Adapters that draw whether a layer is dropped take the branches that eager takes."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from torchfake import fake_mode

OPTIONS: dict[str, dict[str, Any]] = {
    "LoHaConfig": {"r": 4, "module_dropout": 0.4, "rank_dropout": 0.2},
    "LoraConfig": {"lora_dropout": 0.1},
    "AdaLoraConfig": {"total_step": 10},
    "VBLoRAConfig": {"vector_length": 16, "num_vectors": 16},
    "HRAConfig": {},
}


LOKR = {"LoKrConfig": {"r": 4, "module_dropout": 0.2, "rank_dropout": 0.2}}


def train(kind: str) -> list[tuple[bool, ...]]:
    """Which parameters have a gradient after each step."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=320, num_attention_heads=4, **sizes))
    torch.manual_seed(4)  # what was drawn for the weights is not what eager draws
    config = getattr(peft, kind)(target_modules=["q_proj", "v_proj"], **{**OPTIONS, **LOKR}[kind])
    model: Any = peft.get_peft_model(base, config)
    adapted = [p for p in model.train().parameters() if p.requires_grad]
    optimizer, found = torch.optim.AdamW(adapted), []
    torch.manual_seed(5)
    for _ in range(3):
        tokens = torch.ones(2, 8).long()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        found.append(tuple(p.grad is not None for p in adapted))
        optimizer.zero_grad()
    model.merge_and_unload() if kind != "VBLoRAConfig" else None
    return found


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
def test_lokr_trains_with_dropped_modules() -> None:
    with fake_mode(answer="typical"):
        assert len(train("LoKrConfig")) == 3


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # peft asks transformers for it
@pytest.mark.parametrize("kind", OPTIONS)
def test_adapters_train(kind: str) -> None:
    expected = train(kind)
    with fake_mode(answer="typical"):
        assert train(kind) == expected
