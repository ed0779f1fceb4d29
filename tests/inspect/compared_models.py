"""Models that are compared, and edits of them: small ones of transformers, and a plain stack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

SMALL = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": 60,
}  # fmt: skip


MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {**SMALL, "num_key_value_heads": 1},
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": 60},  # tied
    "BertForMaskedLM": SMALL,  # tied, with buffers that are not saved
    "T5ForConditionalGeneration": {
        "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 60,
    },
    "ConvNextModel": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "ResNetModel": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},  # buffers
}  # fmt: skip


def model_of(name: str, **changes: Any) -> Any:
    """A small model of transformers, its config changed."""
    transformers = pytest.importorskip("transformers")
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**{**MODELS[name], **changes}))


def stack(width: int = 8, depth: int = 3, *, bias: bool = True) -> nn.Module:
    """Layers, a norm with buffers, one of which is not saved, and a head."""
    module = nn.Module()
    module.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(depth))
    module.norm = nn.BatchNorm1d(width)
    module.norm.register_buffer("unsaved", torch.zeros(3), persistent=False)
    module.head = nn.Linear(width, 5)
    return module


# Edits.


def change_shape(module: nn.Module) -> None:
    module.head.weight = nn.Parameter(torch.zeros(5, 9))


def change_dtype(module: nn.Module) -> None:
    module.layers[1].bfloat16()


def freeze(module: nn.Module) -> None:
    module.head.requires_grad_(False)


def remove_parameter(module: nn.Module) -> None:
    module.layers[2].register_parameter("bias", None)


def add_buffer(module: nn.Module) -> None:
    module.head.register_buffer("scale", torch.ones(()))


def change_kind(module: nn.Module) -> None:
    mean = module.norm.running_mean
    del module.norm.running_mean
    module.norm.running_mean = nn.Parameter(mean)


def make_buffer_unsaved(module: nn.Module) -> None:
    module.norm._non_persistent_buffers_set.add("running_var")


def tie(module: nn.Module) -> None:
    module.layers[2].weight = module.layers[0].weight


EDITS = {
    change_shape: (set(), {"head.weight": ("shape",)}),
    change_dtype: (set(), {"layers.1.weight": ("dtype",), "layers.1.bias": ("dtype",)}),
    freeze: (set(), {"head.weight": ("trainable",), "head.bias": ("trainable",)}),
    remove_parameter: ({"layers.2.bias"}, {}),
    add_buffer: ({"head.scale"}, {}),
    change_kind: (set(), {"norm.running_mean": ("kind", "trainable")}),
    make_buffer_unsaved: (set(), {"norm.running_var": ("kind",)}),
    tie: (set(), {"layers.2.weight": ("tied_to",)}),
}
