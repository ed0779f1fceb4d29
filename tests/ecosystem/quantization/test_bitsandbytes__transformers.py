"""bitsandbytes by transformers' BitsAndBytesConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import BitsAndBytesConfig

from tests.ecosystem.quantization import quantized_models as models
from torchfake import fake_mode
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
