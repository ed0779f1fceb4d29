"""The bytes of quantized weights: which layers, scales included, and where they fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.inspect.small_models import model_and_inputs
from torchfake import estimate, fake_mode, fit
from torchfake.errors import DeviceError, InputsError
from torchfake.inspect import Question, inspect_target, summary, weights
from torchfake.inspect.contents.schemes import scheme_of_config
from torchfake.inspect.contents.weights import weights_by
from torchfake.inspect.show.headline import headline

# By hand, of a weight of 512 x 384 in bfloat16, and of one of 96 x 200.
BYTES = {
    "nf4": (98_304 + 3072 + 12 * 4 + 1092, 9600 + 300 + 2 * 4 + 1092),
    "int4": (98_304 + 2 * 2 * 1536, 96 * 200 * 2),
    "int8": (196_608 + 512 * 5, 19_200 + 96 * 5),
    "fp8": (196_608 + 512 * 4, 19_200 + 96 * 4),
}


@pytest.mark.parametrize("scheme", BYTES)
def test_codes_and_scales(scheme: str) -> None:
    net = nn.Sequential(
        nn.Linear(384, 512, bias=False), nn.LayerNorm(512), nn.Linear(200, 96), nn.Conv1d(2, 3, 4)
    ).bfloat16()
    found = weights(net, scheme)
    kept = 2 * (512 * 2 + 96 + 24 + 3)
    assert found.num_bytes == sum(BYTES[scheme]) + kept
    assert found.unquantized_bytes == 2 * sum(p.numel() for p in net.parameters())
    assert found.num_quantized == 512 * 384 + (96 * 200 if scheme != "int4" else 0)
    with fake_mode():
        fake = nn.Sequential(nn.Linear(384, 512, bias=False)).bfloat16()
    assert weights(fake, scheme).num_bytes == BYTES[scheme][0]


def test_what_transformers_keeps() -> None:
    """The output layer, tied weights, the last weight; a layer that is tied is not counted twice."""
    llama, _ = model_and_inputs("llama")
    found = weights(llama, "int8")
    layers = [m for n, m in llama.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]
    assert found.num_quantized == sum(layer.weight.numel() for layer in layers)
    gpt2, _ = model_and_inputs("gpt2")
    assert weights(gpt2, "int8").num_quantized == 0  # its layers are Conv1D
    assert weights(gpt2, "nf4").num_quantized > 0
    t5, _ = model_and_inputs("t5")
    assert weights(t5, "nf4").num_quantized < weights(t5, "int8").num_quantized  # wo in float32
    shared = nn.Linear(8, 8)
    assert weights(nn.Sequential(shared, shared), "fp8").num_quantized == 64


def test_where_they_fit() -> None:
    with fake_mode():
        layer = nn.Linear(1 << 16, 1 << 16, bias=False)  # 17.2 GB, 2.15 GB in 4 bits
    found = weights(layer, "nf4", "T4, h100")
    assert [(each.gpu, each.verdict) for each in found.fits] == [
        ("t4-16gb", "yes"),
        ("h100-80gb", "yes"),
    ]
    said = (
        "fits       yes for the weights alone, on 2 of 2 GPUs: t4-16gb, h100-80gb; no step was run"
    )
    assert str(found).startswith(f"{said}\n")
    assert "The model was not run" in str(found)
    assert found.to_dict()["fits"][0]["fits"] is True
    few = weights(layer, "int4", "T4, h100")  # whose kernels need compute capability 8.0
    assert [each.verdict for each in few.fits] == ["no", "yes"]
    assert "\nnot on     t4-16gb: the library's kernels do not run there\n" in str(few)
    assert str(few).startswith("fits       yes for the weights alone, on 1 of 2 GPUs: h100-80gb;")
    assert str(weights(layer, "int4", "T4")).startswith("fits       no, on t4-16gb: ")
    assert not weights(nn.Sequential(*[layer] * 1), "int8", "rtx3080").fits[0].headroom_bytes < 0
    with pytest.raises(InputsError, match="weights='int3' is not nf4, bnb-int8, int4"):
        weights(layer, "int3")
    with pytest.raises(DeviceError, match="gpu='a100' may mean"):
        weights(layer, "int4", "a100")


CONFIGS = {
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
}


def test_schemes_of_configs() -> None:
    layer = nn.Linear(384, 512, bias=False)
    sizes = {"nf4": 98_304 + 4 * 3072 + 64, "int8": 196_608 + 4 * 512, "fp8": 196_608 + 4 * 12}
    sizes |= {"awq": 98_304 + 3 * 512 // 2 + 2 * 3 * 512}
    sizes |= {"gptq": sizes["awq"] + 4 * 384}
    for name, config in CONFIGS.items():
        found = scheme_of_config(config)
        assert found is not None
        assert (found[0], weights_by(layer, *found, {}).num_bytes) == (name, sizes[name])
    double = scheme_of_config({**CONFIGS["nf4"], "bnb_4bit_use_double_quant": True})
    assert double is not None
    assert weights_by(layer, *double, {}) == weights(layer, "nf4")
    assert scheme_of_config({"quant_method": "hqq", "nbits": 4}) is None
    assert scheme_of_config({}) is None


class Experts(nn.Module):
    """Three experts, each projection stored as one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(3, 2 * 256, 384))
        self.down_proj = nn.Parameter(torch.empty(3, 384, 256))


@pytest.mark.parametrize("method", ["fp8", "gptq", "awq"])
def test_experts_stored_as_one_tensor(method: str) -> None:
    """They are quantized as the layers that they are in a checkpoint; by bitsandbytes not at all,
    nor where the config says so.
    """
    with fake_mode():
        mixture = nn.ModuleDict({"experts": Experts()}).bfloat16()
        layers = nn.ModuleList(
            nn.Linear(*shape, bias=False).bfloat16()
            for shape in [(384, 256), (384, 256), (256, 384)] * 3
        )
    found = scheme_of_config(CONFIGS[method])
    assert found is not None
    assert weights_by(mixture, *found, {}) == weights_by(layers, *found, {})
    assert weights(mixture, "nf4").num_quantized == 0


def test_the_first_line_about_a_mixture_in_fp8(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        architectures=["MixtralForCausalLM"], num_hidden_layers=4, dtype="bfloat16"
    )
    config.quantization_config = CONFIGS["fp8"]
    config.save_pretrained(tmp_path)
    found = inspect_target(str(tmp_path))
    first = str(found).partition("\n")[0]
    assert first.startswith("6.07B params (1.84B active) | 12.1 GB (11.3 GiB) bf16 | 6.33 GB (")
    assert "params in fp8" not in first  # nearly all are
    kept = inspect_target(
        str(tmp_path), overrides=['quantization_config.modules_to_not_convert=["experts"]']
    )
    assert kept.weights is not None
    assert kept.weights.num_quantized < 0.1 * 6.07e9


def test_sizes_of_gptq_and_awq_are_those_of_their_tensors() -> None:
    """As gptqmodel's and AutoAWQ's layers register them."""
    columns, rows, group = 4096, 11008, 128
    packed = {
        "qweight": torch.empty(columns // 8, rows, dtype=torch.int32, device="meta"),
        "qzeros": torch.empty(columns // group, rows // 8, dtype=torch.int32, device="meta"),
        "scales": torch.empty(columns // group, rows, dtype=torch.float16, device="meta"),
    }
    num_bytes = sum(tensor.nbytes for tensor in packed.values())
    with fake_mode():
        layer = nn.Linear(columns, rows, bias=False).half()
    assert weights(layer, "awq").num_bytes == num_bytes
    assert weights(layer, "gptq").num_bytes == num_bytes + columns * 4  # g_idx
    ungrouped = scheme_of_config({"quant_method": "gptq", "bits": 8, "group_size": -1})
    assert ungrouped is not None
    small = nn.Linear(384, 512, bias=False)
    assert weights_by(small, *ungrouped, {}).num_bytes == 384 * 512 + 512 + 2 * 512 + 4 * 384
    narrow = nn.Linear(100, 512, bias=False)
    assert weights(narrow, "awq").num_quantized == 0


def test_of_a_target() -> None:
    overrides = ["in_features=4096", "out_features=4096", "bias=false"]
    question = Question(weights="int8", gpus=("h100",))
    found = inspect_target("torch.nn:Linear", overrides=overrides, question=question)
    assert found.weights is not None
    assert found.weights.num_bytes == 4096 * 4096 + 5 * 4096
    assert found.fits is None
    assert found.to_dict()["weights"]["scheme"] == "int8"
    assert "quantized    16.8 MB (16.0 MiB) int8, 67.1 MB (64.0 MiB) unquantized" in str(found)
    with pytest.raises(InputsError, match="is not nf4"):
        inspect_target("torch.nn:Linear", question=Question(weights="int3"))


def test_weights_that_no_kernel_multiplies() -> None:
    with pytest.raises(InputsError, match=r"--dtype fp8: no kernel multiplies.*--weights fp8"):
        inspect_target("torch.nn:Linear", dtype="fp8", question=Question(gpus=("h100",)))
    with fake_mode():
        layer, x = nn.Linear(64, 64).to(torch.float8_e4m3fn), torch.empty(2, 64)
    for run in (
        lambda: estimate(layer, x, gpu="h100"),
        lambda: fit(estimate(layer, x.to(layer.weight.dtype)), "h100"),
    ):
        with pytest.raises(
            InputsError, match=r"weights cast to torch.float8_e4m3fn.*weights\(model"
        ):
            run()


class Mixture(nn.Module):
    """A layer, and experts that are one tensor, which no scheme quantizes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(1 << 14, 1 << 14, bias=False)
        self.experts = nn.Parameter(torch.empty(12, 1 << 14, 1 << 14))


def test_the_first_line_says_if_less_than_half_is_quantized() -> None:
    with fake_mode():
        model = Mixture()
    found = weights(model, "fp8", "h100")
    assert str(found).startswith(
        "fits       yes for the weights alone, 268M of 3.49B params in fp8, on h100-80gb; no step"
    )
    few = weights(nn.Sequential(*[model] * 1), "nf4", "rtx3080")
    line = str(few).splitlines()[0]
    assert line.endswith(
        "no, on rtx3080-10gb: not even the weights alone, 268M of 3.49B params in nf4"
    )
    assert " fp8, 268M of 3.49B params in fp8 | smallest of " in headline(summary(model), found)
