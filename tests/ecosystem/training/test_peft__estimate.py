"""PEFT's configs as estimate takes them, in a Trainer's step: as a real one, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from tests.inspect.counted_trainer import arguments, counted_peaks, without_traces
from torchfake import estimate, profiles
from torchfake.distributed import plan_target
from torchfake.errors import InputsError

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIGS: dict[str, Any] = {
    "lora": peft.LoraConfig(r=4, target_modules=["c_attn"]),
    "dora": peft.LoraConfig(r=4, task_type="CAUSAL_LM", use_dora=True),
    "ia3": peft.IA3Config(task_type="CAUSAL_LM"),
    "prompt tuning": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8),
    "adalora": peft.AdaLoraConfig(r=4, total_step=10, task_type="CAUSAL_LM"),
    "vera": peft.VeraConfig(r=4, task_type="CAUSAL_LM"),
    "norms": peft.LNTuningConfig(task_type="CAUSAL_LM"),
}
LOOPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointing in bf16": {"gradient_checkpointing": True, "bf16": True},
}


def model_and_inputs() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=211, n_positions=64)
    ids = torch.randint(0, 200, (4, 32))
    return GPT2LMHeadModel(config), {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids.clone(),
    }


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_is_byte_exact(name: str, loop: str, tmp_path: Path) -> None:
    with without_traces():
        args = arguments(tmp_path, per_device_train_batch_size=4, **LOOPS[loop])
        model, inputs = model_and_inputs()
        found = estimate(model, inputs, training=args, peft=CONFIGS[name])
        assert all(p.requires_grad for p in model.parameters())
        ahead = sum(tensor.nbytes for tensor in inputs.values())
        _, *later = counted_peaks(peft.get_peft_model(model, CONFIGS[name]), args, inputs)
    assert later == [found.peak_bytes + ahead] * 2


def test_in_the_plain_loop_and_in_inference() -> None:
    model, inputs = model_and_inputs()
    config = CONFIGS["lora"]
    whole = estimate(model, inputs, optimizer="adamw", gpu="t4-16gb")
    adapted = estimate(model, inputs, optimizer="adamw", gpu="t4-16gb", peft=config)
    states = [found.peak.by_category["optimizer state"] for found in (whole, adapted)]
    assert states[1] < states[0] / 10
    assert estimate(model, inputs, peft=config).peak_bytes > estimate(model, inputs).peak_bytes


def test_what_cannot_be() -> None:
    model, inputs = model_and_inputs()
    with pytest.raises(InputsError, match="peft= is a dict: give a config"):
        estimate(model, inputs, peft={"r": 4})
    with pytest.raises(InputsError, match="GPT2LMHeadModel does not take these adapters"):
        estimate(model, inputs, peft=peft.LoraConfig(target_modules=["missing"]))


def test_a_plan_of_adapters_holds_the_frozen_model_in_bf16_and_tries_checkpointing() -> None:
    sizes = ("hidden_size=256", "intermediate_size=512", "num_attention_heads=4", "vocab_size=512")
    overrides = (*sizes, "num_key_value_heads=2", "num_hidden_layers=8")
    given: dict[str, Any] = {"lora": 4, "gpus": 1, "seq": 512, "batch": 1, "overrides": overrides}
    name, gpu = "transformers:LlamaForCausalLM", profiles()["l4-24gb"]
    found = plan_target(name, gpu=gpu, **given)
    full = plan_target(name, gpu=gpu, checkpoint="full", **given)
    assert found.strategy.precision == "bf16"
    assert " in bf16, batch 1" in str(found).splitlines()[0]
    assert "; adapters float32, as PEFT makes them; optimizer adamw" in str(found)
    assert plan_target(name, precision="mixed", **given).strategy.precision == "mixed"
    assert found.plan.fit is not None
    assert full.plan.fit is not None
    missing = (full.plan.fit.headroom_bytes - found.plan.fit.headroom_bytes) // 2
    total = gpu.total_memory - found.plan.fit.headroom_bytes - missing
    small = plan_target(name, gpu=gpu._replace(total_memory=total), **given)
    assert (small.fits, small.remedy) == (False, "--checkpoint full")
