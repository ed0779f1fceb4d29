"""PEFT: every kind of adapter on a tiny Llama: built, run, trained a step; deferred as in eager."""

from __future__ import annotations

import dataclasses
from typing import Any

import peft
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from torchfake import (
    check,
    deferred_init,
    errors,
    example_inputs,
    fake_mode,
    is_fake,
    materialize_module,
)

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = LlamaConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
)  # fmt: skip
TOKENS = {"num_virtual_tokens": 4}
OPTIONS: dict[str, dict[str, Any]] = {
    "ADALORA": {"total_step": 10},
    "ADAPTION_PROMPT": {"adapter_len": 4, "adapter_layers": 1, "target_modules": "self_attn"},
    "C3A": {"block_size": 16},
    "CARTRIDGE": {**TOKENS, "num_frozen_tokens": 1},
    "CPT": {"cpt_token_ids": [1, 2], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 1]},
    "FOURIERFT": {"n_frequency": 10},
    "MISS": {"r": 4},
    "MULTITASK_PROMPT_TUNING": {**TOKENS, "num_tasks": 2},
    "PREFIX_TUNING": TOKENS,
    "PROMPT_TUNING": TOKENS,
    "PSOFT": {"r": 4},
    "P_TUNING": {**TOKENS, "encoder_hidden_size": 16},
    "ROAD": {"group_size": 4},
    "SHIRA": {"r": 2},
    "VBLORA": {"num_vectors": 8, "vector_length": 16},
}
NOT_IN_EAGER = {"ADAMSS", "SHADOW", "TRAINABLE_TOKENS", "WAVEFT", "XLORA"}
"""What needs another library, or another model or other options than these."""
REFUSED = {"SHIRA": errors.UnsupportedOpError, "FROD": errors.UnknownValueError}
"""A sparse tensor; a mask of unknown values, whose length a shape depends on."""
KINDS = [kind.value for kind in peft.PEFT_TYPE_TO_CONFIG_MAPPING if kind.value not in NOT_IN_EAGER]


def build(kind: str) -> Any:
    torch.manual_seed(0)
    config_class: Any = peft.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(kind)]
    options = {"task_type": "CAUSAL_LM", **OPTIONS.get(kind, {})}
    if "target_modules" in {field.name for field in dataclasses.fields(config_class)}:
        options.setdefault("target_modules", ["q_proj", "v_proj"])
    return peft.get_peft_model(LlamaForCausalLM(CONFIG), config_class(**options))


def described(model: Any) -> list[Any]:
    return [(n, p.shape, p.dtype, p.requires_grad) for n, p in model.named_parameters()]


def train_a_step(kind: str) -> Any:
    with fake_mode():
        model = build(kind)
        inputs = example_inputs(model, batch=2, seq=8, labels=True)
        model(**inputs).loss.backward()
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]).step()
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_fakes(kind: str) -> None:
    if kind in REFUSED:
        with pytest.raises(REFUSED[kind]):
            train_a_step(kind)
        return
    model = train_a_step(kind)
    assert is_fake(model)
    assert described(model) == described(build(kind))
    if kind != "CPT":  # whose mask is a parameter: a fake copy does not have its values
        assert check(model, example_inputs(model, batch=2, seq=8)).output["logits"].shape[0] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_deferred_as_in_eager(kind: str) -> None:
    eager, model = build(kind), materialize_module(deferred_init(build, kind))
    assert described(model) == described(eager)
    for (name, one), (_, other) in zip(
        model.state_dict().items(), eager.state_dict().items(), strict=True
    ):
        assert torch.equal(one, other), name
