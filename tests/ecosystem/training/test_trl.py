"""TRL: a step of its trainers on a tiny Llama: with "typical" on fakes, deferred as in eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import torch
import trl
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tests.programs import assert_program

pytestmark = pytest.mark.filterwarnings("ignore")
WORDS = [f"w{index}" for index in range(60)]
TEXTS = [{"text": " ".join(WORDS[:12]) + f" w{index}"} for index in range(4)]
PAIRS = [
    {"prompt": "w1 w2", "chosen": f" w3 w{index + 5}", "rejected": f" w4 w{index + 9}"}
    for index in range(4)
]
PROMPTS = [{"prompt": f"w1 w{index}"} for index in range(4)]


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_labels=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0,
        eos_token_id=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    numbers = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


class Trained:
    """One step of a trainer, without logs or checkpoints."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.folder, self.tokenizer = folder, tokenizer

    def __call__(
        self, kind: str, rows: Any, model: Any, *, more: Any = None, **options: Any
    ) -> Any:
        step = {
            "output_dir": str(self.folder), "max_steps": 1, "per_device_train_batch_size": 2,
            "report_to": [], "save_strategy": "no", "logging_strategy": "no", "use_cpu": True,
            "disable_tqdm": True, "bf16": False, "gradient_checkpointing": False,
        }  # fmt: skip
        trainer = getattr(trl, f"{kind}Trainer")(
            model=model,
            args=getattr(trl, f"{kind}Config")(**(step | options)),
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=self.tokenizer,
            **(more or {}),
        )
        steps = trainer.train().global_step
        return [m for m in (trainer.model, getattr(trainer, "ref_model", None)) if m], steps


@pytest.fixture
def trained(tmp_path: Path, tokenizer: Any) -> Trained:
    return Trained(tmp_path, tokenizer)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"packing": True, "packing_strategy": "wrapped"},
        {"gradient_checkpointing": True},
        {"loss_type": "dft"},
        {"logging_strategy": "steps", "logging_steps": 1},
    ],
    ids=str,
)
def test_sft(trained: Trained, options: dict[str, Any]) -> None:
    def program() -> Any:
        return trained("SFT", TEXTS, LlamaForCausalLM(config()), max_length=32, **options)

    assert_program(program, answer="typical")


def test_sft_of_lora(trained: Trained) -> None:
    def program() -> Any:
        lora = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
        model = LlamaForCausalLM(config())
        return trained("SFT", TEXTS, model, more={"peft_config": lora}, max_length=32)

    assert_program(program, answer="typical")


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_dpo(trained: Trained, loss: str) -> None:
    def program() -> Any:
        model, reference = LlamaForCausalLM(config()), LlamaForCausalLM(config())
        options = {"max_length": 32, "loss_type": loss}
        return trained("DPO", PAIRS, model, more={"ref_model": reference}, **options)

    assert_program(program, answer="typical")


def test_reward(trained: Trained) -> None:
    def program() -> Any:
        return trained("Reward", PAIRS, LlamaForSequenceClassification(config()), max_length=32)

    assert_program(program, answer="typical")


def test_grpo(trained: Trained) -> None:
    """It samples completions: how long they are, and so what is drawn, is not what eager finds."""

    def rewards(completions: list[str], **_: Any) -> list[float]:
        return [float(len(completion)) for completion in completions]

    def program() -> Any:
        options = {"num_generations": 2, "max_completion_length": 4}
        model = LlamaForCausalLM(config())
        found = trained("GRPO", PROMPTS, model, more={"reward_funcs": rewards}, **options)
        torch.manual_seed(0)
        return found

    assert_program(program, answer="typical")
