"""TARGET strings to models: overrides, dtypes, devices, and torch left as it was."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from torchfake import is_fake
from torchfake.errors import DeviceError, MissingExtraError, TargetError
from torchfake.inspect import build, device_named, dtype_named, inspect_target, resolve
from torchfake.inspect.overrides import one_line, parse_overrides

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def config_file(tmp_path):
    def write(**changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**LLAMA, **changes}))
        return str(path)

    return write


def made(text, *overrides, **options):
    return build(resolve(text, overrides=overrides), **options).module


def test_override_values():
    pairs = ["a=1", "b=true", "c=None", "d=[1, 2]", "e=(1, 2)", "f=gelu", "g.h=1e-5", "i=x=y", "j="]
    assert parse_overrides(pairs) == {
        "a": 1,
        "b": True,
        "c": None,
        "d": [1, 2],
        "e": (1, 2),
        "f": "gelu",
        "g.h": 1e-5,
        "i": "x=y",
        "j": "",
    }


def test_one_line_is_one_line():
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(one_line(ValueError("word " * 1000))) < 430


def test_a_config_file_builds_what_transformers_builds(config_file):
    from transformers import LlamaConfig, LlamaForCausalLM

    text = config_file()
    fake = made(text)
    assert is_fake(fake)
    real = LlamaForCausalLM._from_config(LlamaConfig.from_dict(LLAMA))
    assert type(fake) is LlamaForCausalLM
    assert [(n, p.shape, p.dtype) for n, p in fake.named_parameters()] == [
        (n, p.shape, p.dtype) for n, p in real.named_parameters()
    ]
    assert [(n, b.shape, b.dtype) for n, b in fake.named_buffers()] == [
        (n, b.shape, b.dtype) for n, b in real.named_buffers()
    ]


def test_the_folder_of_a_config_file(config_file, tmp_path):
    config_file()
    assert resolve(str(tmp_path)).name == "LlamaForCausalLM"


def test_overrides_of_a_config_file(config_file):
    model = made(config_file(), "num_hidden_layers=5", "hidden_size=32")
    assert len(model.model.layers) == 5
    assert model.lm_head.weight.shape == (100, 32)


def test_num_labels_of_a_config_file_with_names_of_labels(config_file):
    text = config_file(
        architectures=["LlamaForSequenceClassification"], id2label={"0": "a", "1": "b", "2": "c"}
    )
    assert made(text).score.weight.shape[0] == 3
    assert made(text, "num_labels=7").score.weight.shape[0] == 7


def test_an_unknown_architecture_is_built_as_auto_model_does(config_file):
    report = inspect_target(config_file(architectures=["MyOwnLlama"]))
    assert report.tree.class_name == "LlamaModel"
    assert "AutoModel" in report.notes[0]


def test_a_quantized_config_says_so(config_file):
    report = inspect_target(config_file(quantization_config={"quant_method": "fp8"}))
    assert "not quantized" in report.notes[0]


def test_aliases_and_computed_attributes_follow_an_override():
    config = made("transformers:BlenderbotModel", "hidden_size=64", "decoder_layers=1").config
    assert config.d_model == 64
    # LlamaConfig computes head_dim, and so must the one inside LlavaConfig
    model = made(
        "transformers:LlavaModel",
        "text_config.hidden_size=64",
        "text_config.num_attention_heads=2",
        "text_config.num_key_value_heads=2",
        "text_config.num_hidden_layers=1",
        "vision_config.num_hidden_layers=1",
    )
    assert model.language_model.layers[0].self_attn.q_proj.weight.shape == (64, 64)
    assert model.vision_tower.config.hidden_size == 1024  # Llava's default, not CLIP's


def test_a_part_that_is_a_dict():
    model = made("transformers:LlamaModel", "rope_parameters.rope_theta=5.0", "num_hidden_layers=1")
    assert model.config.rope_parameters["rope_theta"] == 5.0


@pytest.mark.parametrize("name", ["bf16", "bfloat16", "torch.bfloat16"])
def test_a_dtype_holds_while_building_and_after(name):
    seen = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            seen.append(torch.get_default_dtype())
            self.register_buffer("positions", torch.arange(3))
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float32))

    model = build(_target(Model), dtype=dtype_named(name)).module
    assert seen == [torch.bfloat16]
    assert model.weight.dtype == torch.bfloat16
    assert model.positions.dtype == torch.int64
    assert torch.get_default_dtype() == torch.float32


def test_eight_bit_floats():
    model = build(_target(lambda: nn.Linear(2, 2)), dtype=dtype_named("fp8")).module
    assert model.weight.dtype == torch.float8_e4m3fn


def test_a_device_without_a_gpu():
    model = build(_target(lambda: nn.BatchNorm1d(2)), device=device_named("cuda:1")).module
    assert {str(t.device) for t in (*model.parameters(), *model.buffers())} == {"cuda:1"}
    assert torch.ones(1).device.type == "cpu"


def _target(construct):
    from torchfake.inspect import Target

    return Target("here:f", "f", construct)


def test_torch_is_restored_when_a_constructor_fails():
    def construct():
        raise ValueError("no")

    with pytest.raises(TargetError, match="f could not be built: ValueError: no") as caught:
        build(_target(construct), dtype=torch.float64, device=device_named("cuda"))
    assert isinstance(caught.value.__cause__, ValueError)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("name", ["tpu", "mps", "meta", "cuda:300", "cuda:127", "cuda:-1", "gpu"])
def test_no_such_device(name):
    with pytest.raises(DeviceError, match=f"'{name}'"):
        device_named(name)


def test_no_such_dtype():
    with pytest.raises(TargetError, match="did you mean bf16"):
        dtype_named("bf17")
    with pytest.raises(TargetError, match="try float32, bf16 or fp16"):
        dtype_named("nn")
    with pytest.raises(TargetError, match="give a floating point dtype"):
        dtype_named("int8")


def test_the_users_own_pretrained_class(tmp_path, monkeypatch):
    (tmp_path / "own_modeling.py").write_text(
        "from transformers import LlamaModel\nclass Mine(LlamaModel): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    model = made("own_modeling:Mine", "num_hidden_layers=2")
    assert (type(model).__name__, len(model.layers)) == ("Mine", 2)


def test_the_path_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text("from torch import nn\nf = lambda: nn.Linear(1, 1)\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    made("own_model:f")
    assert sys.path == before


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r'pip install "torchfake\[hf\]"'):
        resolve("transformers:LlamaModel")


def test_nothing_is_downloaded_while_building(config_file):
    from huggingface_hub import constants

    target = resolve(config_file())
    before = constants.HF_HUB_OFFLINE
    seen = []

    def construct():
        seen.append(constants.HF_HUB_OFFLINE)
        return nn.Linear(1, 1)

    from torchfake.inspect import hf

    hf._target(target.text, "f", made(target.text).config, construct).construct()
    assert seen == [True]
    assert constants.HF_HUB_OFFLINE is before


def test_a_trillion_parameters_in_seconds():
    report = inspect_target(
        "transformers:DeepseekV3Model",
        overrides=["num_hidden_layers=90", "n_routed_experts=320"],
        dtype="bf16",
    )
    assert report.tree.size.num_parameters == 1_249_066_720_256
    assert report.tree.size.parameter_bytes == 2 * 1_249_066_720_256
    assert [child.repeat for child in report.tree.children[1].children] == [3, 87]
    assert report.build_seconds < 30  # 1 where nothing else runs
    assert report.peak_rss_increase_bytes is None or report.peak_rss_increase_bytes < 500_000_000
