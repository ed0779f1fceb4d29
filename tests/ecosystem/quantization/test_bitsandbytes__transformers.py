"""bitsandbytes by transformers' BitsAndBytesConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

from tests.ecosystem.quantization import quantized_models as models
from tests.inspect.counted_trainer import arguments, counted_peaks, without_traces
from torchfake import estimate, fake_mode
from torchfake.errors import UnknownValueError

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIGS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True},
    "int8": {"load_in_8bit": True},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_models(name: str, tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    models.assert_loads_as_eager(folder, lambda: BitsAndBytesConfig(**CONFIGS[name]), runs=False)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("ties", [False, True])
def test_bytes_are_known_without_quantizing(name: str, ties: bool, tmp_path: Path) -> None:
    folder = models.save_model(tmp_path, tie_word_embeddings=ties)
    config = BitsAndBytesConfig(**CONFIGS[name])
    models.assert_weights_are_known(folder, config, "nf4" if name == "nf4" else None)


@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_on_fake_cuda(name: str, tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    with fake_mode(fake_cuda=True):
        net = models.load(folder, BitsAndBytesConfig(**CONFIGS[name]), device_map="cuda")
        assert net(models.TOKENS.cuda()).logits.is_cuda


def test_how_many_columns_have_outliers_is_a_question(tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    config = BitsAndBytesConfig(load_in_8bit=True)
    with fake_mode():
        net = models.load(folder, config)
        with pytest.raises(UnknownValueError, match="int8_vectorwise_quant"):
            net(models.TOKENS)
    with fake_mode(answer="typical") as mode:
        net = models.load(folder, config)
        assert net(models.TOKENS).logits.shape == (1, 8, 512)
    assert any("int8_vectorwise_quant" in str(answer) for answer in mode.answers)


@pytest.mark.parametrize("optim", ["adamw_bnb_8bit", "lion_8bit", "paged_adamw_8bit"])
def test_optimizers_of_a_trainer(optim: str, tmp_path: Path) -> None:
    """Byte for byte what a real Trainer holds, named in its arguments."""
    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=211, n_positions=64)
    model, ids = GPT2LMHeadModel(config), torch.randint(0, 200, (2, 32))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    with without_traces():
        args = arguments(tmp_path, optim=optim)
        found = estimate(model, inputs, training=args)
        assert bool(found.left_out) == optim.startswith("paged")
        if not found.left_out:  # which need a GPU
            ahead = sum(tensor.nbytes for tensor in inputs.values())
            assert counted_peaks(model, args, inputs)[1:] == [found.peak_bytes + ahead] * 2
