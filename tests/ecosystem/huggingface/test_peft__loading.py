"""Adapters that are loaded onto models in a mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from tests.ecosystem.huggingface.pretrained import assert_loads_as_eager

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

CONFIGS: dict[str, Any] = {
    "LoRA": peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    "DoRA": peft.LoraConfig(target_modules=["q_proj"], use_dora=True, init_lora_weights=False),
    "all layers": peft.LoraConfig(target_modules="all-linear", init_lora_weights=False),
    "head saved": peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "IA3": peft.IA3Config(
        target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
    ),
    "AdaLoRA": peft.AdaLoraConfig(target_modules=["q_proj"], total_step=10),
    "VeRA": peft.VeraConfig(target_modules=["q_proj"]),
    "OFT": peft.OFTConfig(target_modules=["q_proj"], oft_block_size=8, init_weights=False),
    "BOFT": peft.BOFTConfig(target_modules=["q_proj"], boft_block_size=8, init_weights=False),
    "prompt": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "prefix": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=211,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def load_base(folder: Path) -> Any:
    return transformers.LlamaForCausalLM.from_pretrained(folder)


def save_adapter(base: Path, folder: Path, config: Any) -> None:
    torch.manual_seed(0)
    peft.get_peft_model(load_base(base), config).save_pretrained(folder)


@pytest.mark.parametrize("name", CONFIGS)
def test_from_pretrained(name: str, base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path, CONFIGS[name])
    assert_loads_as_eager(lambda: peft.PeftModel.from_pretrained(load_base(base), tmp_path))


@pytest.mark.parametrize("options", [{"low_cpu_mem_usage": True}, {"is_trainable": True}])
def test_options(options: dict[str, bool], base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path, CONFIGS["LoRA"])
    assert_loads_as_eager(
        lambda: peft.PeftModel.from_pretrained(load_base(base), tmp_path, **options)
    )


def test_an_adapter_of_transformers(base: Path, tmp_path: Path) -> None:
    """Loaded by the model itself; merged; and with its base model, by its own name."""
    save_adapter(base, tmp_path, CONFIGS["LoRA"])

    def load_adapter() -> Any:
        model = load_base(base)
        model.load_adapter(str(tmp_path))
        return model

    assert_loads_as_eager(load_adapter)
    loaded = lambda: peft.PeftModel.from_pretrained(load_base(base), tmp_path)  # noqa: E731
    assert_loads_as_eager(lambda: loaded().merge_and_unload())
    assert_loads_as_eager(lambda: peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path))
