"""Configs of small models, in files, and targets to build."""

from __future__ import annotations

import json

import pytest

from torchfake.inspect import resolve
from torchfake.inspect.targets.build import build

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
    """The module that a TARGET names."""
    return build(resolve(text, overrides=overrides), **options).module


def target_of_callable(construct):
    """A target that is built by calling `construct`."""
    from torchfake.inspect import Target

    return Target("here:f", "f", construct)
