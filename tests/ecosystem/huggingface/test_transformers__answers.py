"""Programs of transformers that ask for values: with "typical" they run, as long as eager's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from torchfake import fake_mode

TOKENS: dict[str, Any] = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4,
}  # fmt: skip


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES, **TOKENS, num_key_value_heads=2))


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=320, **TOKENS))


def mixtral() -> Any:
    options = {"num_key_value_heads": 2, "num_local_experts": 4}
    return MixtralForCausalLM(MixtralConfig(**SIZES, **TOKENS, **options))


def whisper() -> Any:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 64, "vocab_size": 320}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    wide = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_target_positions": 64}
    config = WhisperConfig(**layers, **heads, **wide, **TOKENS, decoder_start_token_id=3)
    config.suppress_tokens = config.begin_suppress_tokens = None
    return WhisperForConditionalGeneration(config)


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "top_k": 5, "top_p": 0.9, "temperature": 0.7},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beams, sampled": {"num_beams": 3, "do_sample": True, "early_stopping": True},
    "penalties": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "eos_token_id": [5, 6]},
}


@pytest.mark.parametrize("make", [llama, gpt2, mixtral])
@pytest.mark.parametrize("way", WAYS)
def test_generate_ends_at_the_length_that_is_asked_for(make: Callable[[], Any], way: str) -> None:
    with fake_mode(answer="typical") as mode:
        found = make().eval().generate(torch.ones(2, 7).long(), max_new_tokens=5, **WAYS[way])
    assert found.shape == (2 * WAYS[way].get("num_return_sequences", 1), 12)
    assert mode.answers


def t5() -> Any:
    sizes = {"vocab_size": 320, "d_model": 64, "d_ff": 64, "d_kv": 16, "num_layers": 1}
    return T5ForConditionalGeneration(T5Config(**sizes, **TOKENS, decoder_start_token_id=3))


@pytest.mark.parametrize("options", [{}, {"do_sample": True}, {"early_stopping": True}])
def test_a_search_by_beams_takes_all_its_steps(options: dict[str, Any]) -> None:
    """Unless a row ends early, and of weights that do not exist none does."""
    passes = []
    with fake_mode(answer="typical"):
        model = t5().eval()
        model.register_forward_hook(lambda *args: passes.append(1))
        found = model.generate(torch.ones(2, 7).long(), max_new_tokens=5, num_beams=3, **options)
    assert found.shape == (2, 6)
    assert len(passes) == 5


WHISPER: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "times of tokens": {"num_beams": 2, "return_timestamps": True, "return_token_timestamps": True},
}


@pytest.mark.parametrize("way", WHISPER)
def test_whisper_generates(way: str) -> None:
    with fake_mode(answer="typical"):
        model = whisper().eval()
        model.generation_config.no_timestamps_token_id = 300
        model.generation_config.alignment_heads = [[0, 0], [0, 1]]
        sound = torch.randn(2, 80, 3000)
        found = model.generate(sound, max_new_tokens=5, **WHISPER[way])
    rows = found["token_timestamps"] if way == "times of tokens" else found
    assert rows.shape[0] == 2


def test_the_trainer_trains_logs_and_evaluates(tmp_path: Path) -> None:
    rows = [{"input_ids": [*range(3, 11)], "labels": i % 2} for i in range(8)]
    options: dict[str, Any] = {
        "max_steps": 2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 1,
        "per_device_train_batch_size": 2, "report_to": [], "save_strategy": "no",
        "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    with fake_mode(answer="typical") as mode:
        trainer = Trainer(
            model=BertForSequenceClassification(BertConfig(**SIZES)),
            args=TrainingArguments(output_dir=str(tmp_path), **options),
            train_dataset=rows,
            eval_dataset=rows,
        )
        assert trainer.train().global_step == 2
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == [1.0, 1.0]
    assert {a.answered_by for a in mode.answers} >= {"finiteness", "typical"}


def test_embeddings_are_resized_as_the_mean_of_the_others_says() -> None:
    with fake_mode(answer="typical"):
        assert llama().resize_token_embeddings(330).weight.shape == (330, 64)
