"""Overrides of configs: computed attributes and nested configs follow them."""

from __future__ import annotations

import pytest

from tests.inspect.targets.conftest import made

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import


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
