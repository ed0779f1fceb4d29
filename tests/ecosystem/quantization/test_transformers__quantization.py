"""Quantization of transformers that needs no other library, and what it refuses without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    FineGrainedFP8Config,
    HiggsConfig,
    Mxfp4Config,
)
from transformers.quantizers.auto import AutoHfQuantizer

from tests.ecosystem.quantization import quantized_models as models
from torchfake import fake_mode
from torchfake.inspect import summary
from torchfake.inspect.contents.schemes import scheme_of_config
from torchfake.inspect.contents.weights import weights_by

pytestmark = pytest.mark.filterwarnings("ignore")

QUANTIZED: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "mxfp4": {"quant_method": "mxfp4"},
    "bitnet": {
        "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_configuration_that_says_that_it_is_quantized(name: str, tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    file = folder / "config.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "quantization_config": QUANTIZED[name]})
    )
    models.assert_loads_as_eager(folder, lambda: None)


@pytest.mark.parametrize("make", [FineGrainedFP8Config, HiggsConfig])
def test_what_eager_refuses_without_a_gpu(make: Any, tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    expected = models.error_of(folder, make())
    with fake_mode():
        assert models.error_of(folder, make()) == expected


def test_fp8_on_fake_cuda(tmp_path: Path) -> None:
    """In the process in which eager found no GPU."""
    folder = models.save_model(tmp_path)
    models.error_of(folder, FineGrainedFP8Config())
    with fake_mode(fake_cuda="h100-80gb"):
        net = models.load(folder, FineGrainedFP8Config(), device_map="cuda")
        weight = net.model.layers[0].self_attn.q_proj.weight
        assert (weight.dtype, weight.device.type) == (torch.float8_e4m3fn, "cuda")
        assert summary(net).tree.size.parameter_bytes == models.bytes_of(
            [held for p in net.parameters() for held in models.held_tensors(p)]
        )
        scheme = scheme_of_config(net.config.quantization_config.to_dict())
        plain = models.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        assert scheme is not None
        assert weights_by(plain, *scheme, {}).num_bytes == models.bytes_of(models.all_held(net))


SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 384, "vocab_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 128},
    "deepseek_v3": {
        "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "moe_intermediate_size": 128, "kv_lora_rank": 128, "q_lora_rank": 192,
    },
}  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {}, {"scale_fmt": "ue8m0"}, {"expert_dtype": "fp4"},
    {"modules_to_not_convert": ["model.layers.0", "lm_head"]}, {"modules_to_not_convert": []},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", MIXTURES)
def test_fp8_of_mixtures_has_the_bytes_of_the_layers_that_replace_them(
    name: str, options: dict[str, Any]
) -> None:
    """On meta: the quantizer replaces layers and experts without a GPU, before weights load."""
    config = AutoConfig.for_model(name, **{**SIZES, **MIXTURES[name]})
    with torch.device("meta"):
        plain, net = (
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16) for _ in range(2)
        )
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128], **options}
    quantizer = AutoHfQuantizer.from_config(quantization, pre_quantized=True)
    quantizer._process_model_before_weight_loading(net)
    scheme = scheme_of_config(quantization)
    assert scheme is not None
    assert weights_by(plain, *scheme, {}).num_bytes == models.bytes_of(models.all_held(net))


def test_mxfp4_where_it_is_dequantized(tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    models.assert_loads_as_eager(folder, lambda: Mxfp4Config(dequantize=True))
