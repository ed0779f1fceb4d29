"""Weights as engines store them: bytes against the modules of transformers and published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from torchfake import profiles
from torchfake.distributed import serve
from torchfake.distributed.passes.formats import (
    FORMATS,
    Format,
    check_kernels,
    format_named,
    format_of_config,
    is_kept,
    is_quantized,
    rate_of,
)
from torchfake.errors import InputsError
from torchfake.inspect.timing.hardware import HARDWARE

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

ROWS, COLUMNS = 1000, 4096
H100 = profiles()["h100-80gb"]


def _bytes_of(module: torch.nn.Module) -> int:
    return sum(each.nbytes for each in module.parameters() if each.dim() != 1)


def test_fp8_has_a_scale_for_each_row_as_fbgemm() -> None:
    from transformers.integrations.fbgemm_fp8 import FbgemmFp8Linear

    with torch.device("meta"):
        layer = FbgemmFp8Linear(COLUMNS, ROWS, False)
    assert FORMATS["fp8"].num_bytes(ROWS, COLUMNS) == _bytes_of(layer)


@pytest.mark.parametrize("block", [None, (128, 128), (64, 256)])
def test_fp8_of_blocks_or_of_a_tensor_is_that_of_transformers(block: Any) -> None:
    from transformers.integrations.finegrained_fp8 import FP8Linear

    with torch.device("meta"):
        layer = FP8Linear(COLUMNS, ROWS, block_size=block)
    found = format_of_config({"quant_method": "fp8", "weight_block_size": block and list(block)})
    assert found is not None
    assert found.num_bytes(ROWS, COLUMNS) == _bytes_of(layer)


def test_mxfp4_is_packed_as_in_transformers() -> None:
    from transformers import GptOssConfig
    from transformers.integrations.mxfp4 import Mxfp4GptOssExperts

    config = GptOssConfig(num_local_experts=4, hidden_size=256, intermediate_size=512)
    with torch.device("meta"):
        experts = Mxfp4GptOssExperts(config)
    codes = experts.gate_up_proj.nbytes + experts.down_proj.nbytes
    stored = FORMATS["mxfp4"].num_bytes(1024, 256) + FORMATS["mxfp4"].num_bytes(256, 512)
    scales = (1024 * 256 + 256 * 512) // 32
    assert 4 * (stored - scales) == codes


@pytest.mark.parametrize(("name", "bits"), [("mxfp4", 4.25), ("nvfp4", 4.5), ("awq", 4.15625)])
def test_bits_of_a_value_with_its_scales(name: str, bits: float) -> None:
    assert FORMATS[name].num_bytes(4096, 4096) * 8 / 4096**2 == bits


@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_gptq_is_stored_as_its_tensors_are(group: int) -> None:
    """gptqmodel: qweight and qzeros in int32, scales in float16; a group of -1 is a whole row."""
    found = format_of_config({"quant_method": "gptq", "bits": 4, "group_size": group})
    groups = 1 if group == -1 else COLUMNS // group
    qweight = COLUMNS // 8 * ROWS * 4
    qzeros, scales = groups * ROWS // 8 * 4, groups * ROWS * 2
    assert found is not None
    assert found.num_bytes(ROWS, COLUMNS) == qweight + qzeros + scales


def _scheme(kind: str, bits: int, strategy: str, *, narrow: bool = True, **more: Any) -> Any:
    weights = {"type": kind, "num_bits": bits, "strategy": strategy, **more}
    group = {"weights": weights, "input_activations": {"num_bits": bits} if narrow else None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("config", "name", "block", "products"),
    [
        (_scheme("float", 8, "channel"), "fp8", (1, None), "fp8"),
        (_scheme("float", 8, "tensor"), "fp8", (None, None), "fp8"),
        (_scheme("float", 8, "block", block_structure=[128, 128]), "fp8-block", (128, 128), "fp8"),
        (_scheme("float", 8, "channel", narrow=False), "fp8", (1, None), "model"),
        (_scheme("int", 8, "channel"), "int8", (1, None), "int8"),
        (_scheme("int", 4, "group", narrow=False, group_size=64), "gptq", (1, 64), "model"),
        (_scheme("float", 4, "tensor_group", group_size=16), "nvfp4", (1, 16), "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", (None, None), "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", (1, 16), "fp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq", (1, 64), "model"),
        ({"quant_method": "mxfp4"}, "mxfp4", (1, 32), "fp4"),
    ],
)
def test_a_config_names_format_and_groups(
    config: Any, name: str, block: Any, products: str
) -> None:
    found = format_of_config(config)
    assert found is not None
    assert (found.name, found.block, found.products) == (name, block, products)


def test_symmetric_groups_have_no_zero_points() -> None:
    config = _scheme("int", 4, "group", narrow=False, group_size=128)
    config["config_groups"]["group_0"]["weights"]["symmetric"] = False
    with_zeros = format_of_config(config)
    config["config_groups"]["group_0"]["weights"]["symmetric"] = True
    without = format_of_config(config)
    assert with_zeros is not None
    assert without is not None
    assert (with_zeros.zero_bits, without.zero_bits) == (4, 0)


@pytest.mark.parametrize(
    "config",
    [{"quant_method": "bitsandbytes"}, {}, _scheme("int", 3, "group"),
     {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}],
)  # fmt: skip
def test_an_unknown_config_is_no_format(config: Any) -> None:
    assert format_of_config(config) is None


NAMES = [
    "model.layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj", "lm_head",
    "model.layers.1.mlp.gate", "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.router",
]  # fmt: skip


@pytest.mark.parametrize(
    "patterns",
    [["lm_head"], ["model.layers.1"], ["mlp.gate"], ["model.layers.*.self_attn"], ["q_proj"],
     ["model.layers.*.mlp.router", "lm_head"]],
)  # fmt: skip
def test_kept_layers_are_those_of_transformers(patterns: list[str]) -> None:
    from transformers.quantizers.quantizers_utils import should_convert_module

    if patterns == ["mlp.gate"]:  # as a suffix in transformers, anywhere here
        assert [name for name in NAMES if is_kept(f"{name}.weight", patterns)] == [NAMES[3]]
        return
    for name in NAMES:
        assert is_kept(f"{name}.weight", patterns) != should_convert_module(name, patterns), name


def test_a_pattern_may_be_a_regular_expression() -> None:
    kept = [name for name in NAMES if is_kept(f"{name}.weight", ["re:.*mlp.gate$"])]
    assert kept == ["model.layers.1.mlp.gate"]


def test_a_pattern_of_the_model_optimizer_has_stars() -> None:
    kept = [name for name in NAMES if is_kept(f"{name}.weight", ["model.layers.1.self_attn*"])]
    assert kept == ["model.layers.1.self_attn.q_proj"]


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.layers.0.mlp.up_proj.weight", (64, 64), True),
        ("model.layers.0.mlp.experts.gate_up_proj", (8, 64, 64), True),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", (8, 64), False),
        ("model.layers.0.mlp.gate.weight", (8, 64), False),
        ("model.layers.0.mlp.gate_proj.weight", (64, 64), True),
        ("model.embed_tokens.weight", (100, 64), False),
        ("lm_head.weight", (100, 64), False),
        ("model.layers.0.q_norm.weight", (64,), False),
        ("model.layers.0.mamba.A_log", (64, 16), False),
        ("model.layers.0.conv1d.weight", (64, 1, 4), False),
    ],
)
def test_engines_quantize_matrices_of_layers(name: str, shape: Any, expected: bool) -> None:
    assert is_quantized(name, shape) is expected


@pytest.mark.parametrize(
    ("gpu", "name", "expected"),
    [
        ("h100-80gb", "mxfp4", "model"), ("b200-180gb", "mxfp4", "fp4"),
        ("a100-80gb", "fp8", "model"), ("l40s-48gb", "fp8", "fp8"),
        ("a100-80gb", "int8", "int8"), ("h100-80gb", "awq", "model"),
    ],
)  # fmt: skip
def test_tensor_cores_multiply_what_they_can(gpu: str, name: str, expected: str) -> None:
    assert FORMATS[name].operands_on(profiles()[gpu]) == expected


def test_rates_are_those_of_the_datasheet() -> None:
    hardware = HARDWARE["b200-180gb"]
    assert hardware is not None
    rates = [rate_of(each, torch.bfloat16, hardware) / 1e15 for each in ("model", "fp8", "fp4")]
    assert rates == [2.25, 4.5, 9.0]


def test_a_format_without_kernels_is_refused_with_others() -> None:
    with pytest.raises(InputsError, match=r"has no kernels for weights='nvfp4'.*give one of bf16"):
        check_kernels(FORMATS["nvfp4"], H100)


def test_a_misspelt_format_is_refused() -> None:
    with pytest.raises(InputsError, match="is no format that is served: give one of bf16, fp8"):
        format_named("fp9")


SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1000,
}  # fmt: skip
ATTENTION, MLP = 2 * 256 * 256 + 2 * 128 * 256, 3 * 256 * 512


def _weights(folder: Path, quantization: Any) -> int:
    path = folder / "config.json"
    path.write_text(json.dumps({**SMALL, "quantization_config": quantization}))
    return serve(str(path), gpu="h100-80gb", context=64, pass_tokens=64).memory.weights


def _fp8(*kept: str) -> dict[str, Any]:
    return {"quant_method": "fbgemm_fp8", "modules_to_not_convert": list(kept)}


def test_layers_that_a_checkpoint_keeps_stay_in_the_models_dtype(tmp_path: Path) -> None:
    whole = _weights(tmp_path, _fp8())
    kept = _weights(tmp_path, _fp8("self_attn"))
    scales = 4 * (256 + 256 + 128 + 128)
    assert kept - whole == 6 * (ATTENTION - scales)


def test_layers_are_kept_by_their_own_number(tmp_path: Path) -> None:
    whole = _weights(tmp_path, _fp8())
    last = [f"model.layers.5.mlp.{name}_proj" for name in ("gate", "up", "down")]
    kept = _weights(tmp_path, _fp8(*last))
    assert kept - whole == MLP - 4 * (512 + 512 + 256)


def test_an_unknown_quantization_config_is_refused_with_formats(tmp_path: Path) -> None:
    with pytest.raises(InputsError, match=r"has bitnet, .* give weights=, one of bf16, fp8"):
        _weights(tmp_path, {"quant_method": "bitnet"})


@pytest.mark.parametrize(("layers", "experts", "gib"), [(24, 32, 12.8), (36, 128, 60.8)])
def test_gpt_oss_has_the_published_size(
    layers: int, experts: int, gib: float, tmp_path: Path
) -> None:
    """OpenAI, gpt-oss model card (2508.10925), table 1: sizes of the checkpoints."""
    from transformers import GptOssConfig

    config = GptOssConfig(num_hidden_layers=layers, num_local_experts=experts)
    kept = [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ]
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    raw = {**config.to_dict(), "architectures": ["GptOssForCausalLM"], "dtype": "bfloat16"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**raw, "quantization_config": quantization}))
    found = serve(str(path), gpu="h100-80gb", context=64, pass_tokens=64)
    assert found.memory.weights / 2**30 == pytest.approx(gib, abs=0.06)


def test_every_format_has_a_source() -> None:
    assert all(isinstance(each, Format) and each.source for each in FORMATS.values())
