"""A folder with models and configs, a small model, and how output is compared."""

from __future__ import annotations

import json
import re
import sys
import textwrap

import pytest
from expecttest import assert_expected_inline

from torchfake import fake_mode

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": True,
}


MODELS = """
    import sys
    import warnings

    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width: int = 4, *, num_layers=3):
            super().__init__()
            self.embedding = nn.Embedding(10, width)
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))
            self.norm = nn.BatchNorm1d(width)
            self.norm.weight.requires_grad_(False)
            self.head = nn.Linear(width, 10, bias=False)
            self.head.weight = self.embedding.weight

    def needs(width):
        return Net(width)

    def noisy():
        print("noise")
        warnings.warn("noise")
        return Net()

    def fails():
        raise ValueError("no such\\n    thing")

    def leaves():
        sys.exit(0)

    def interrupted():
        raise KeyboardInterrupt

    def number():
        return 3

    instance = nn.Linear(1, 1)
    """


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory: with a module of models and config files."""
    (tmp_path / "models_here.py").write_text(textwrap.dedent(MODELS))
    (tmp_path / "exits_here.py").write_text("import sys\nsys.exit(1)\n")
    (tmp_path / "imports_here.py").write_text("import not_installed_here\n")
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    (tmp_path / "own.json").write_text('{"model_type": "lama", "auto_map": {}}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "none.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("models_here", "exits_here", "imports_here"):
        sys.modules.pop(name, None)


def mask_measurements(out):
    """What is printed, without times and memory."""
    out = re.sub(r"time( +).*", r"time\1<time>", out)
    return re.sub(r"peak memory( +).*", r"peak memory\1<memory>", out).rstrip()


def check_output(result, expected):
    """Compare what a successful command has printed, to the letter."""
    code, out, err = result
    assert (code, err) == (0, "")
    assert_expected_inline(mask_measurements(out), expected, skip=1)


SMALL = (
    *("transformers:LlamaForCausalLM", "-c", "hidden_size=64", "-c", "intermediate_size=128"),
    *("-c", "num_hidden_layers=1", "-c", "num_attention_heads=4", "-c", "vocab_size=100"),
    *("-c", "num_key_value_heads=2"),
)
"""A small model as a TARGET with overrides."""


def small() -> object:
    """The model that SMALL names."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {key: int(value) for key, _, value in (pair.partition("=") for pair in SMALL[2::2])}
    with fake_mode():
        return LlamaForCausalLM(LlamaConfig(**config))
