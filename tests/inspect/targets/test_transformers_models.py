"""Targets of transformers: classes and config files, with overrides."""

from __future__ import annotations

import sys

import pytest
from torch import nn

from tests.inspect.targets.conftest import LLAMA, made
from torchfake import is_fake
from torchfake.errors import MissingExtraError
from torchfake.inspect import inspect_target, resolve

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import


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


def test_an_unknown_architecture_is_built_as_auto_model_does(config_file):
    report = inspect_target(config_file(architectures=["MyOwnLlama"]))
    assert report.tree.class_name == "LlamaModel"
    assert "AutoModel" in report.notes[0]


def test_a_quantized_config_says_so(config_file):
    report = inspect_target(config_file(quantization_config={"quant_method": "fp8"}))
    assert "built unquantized" in report.notes[0]


def test_the_users_own_pretrained_class(tmp_path, monkeypatch):
    (tmp_path / "own_modeling.py").write_text(
        "from transformers import LlamaModel\nclass Mine(LlamaModel): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    model = made("own_modeling:Mine", "num_hidden_layers=2")
    assert (type(model).__name__, len(model.layers)) == ("Mine", 2)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r'pip install "torchfake\[hf\]"'):
        resolve("transformers:LlamaModel")


def test_nothing_is_downloaded_while_building(config_file):
    from huggingface_hub import constants

    target = resolve(config_file())
    before = constants.HF_HUB_OFFLINE
    seen = []

    def construct(config):
        seen.append(constants.HF_HUB_OFFLINE)
        return nn.Linear(1, 1)

    from torchfake.inspect.targets import transformers_models

    transformers_models.target_of(target.text, "f", made(target.text).config, construct).construct()
    assert seen == [True]
    assert constants.HF_HUB_OFFLINE is before


def test_each_model_has_a_config_of_its_own(config_file):
    target = resolve(config_file())
    first = target.construct()
    first.config._attn_implementation = "eager"
    assert target.construct().config._attn_implementation == "sdpa"


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
