"""Models to trace, and the ways to build them: real, deferred, on fake CUDA."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchfake import deferred_init, fake_like, fake_mode


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, groups=4), nn.GroupNorm(2, 8), nn.PReLU())
        self.head = nn.Linear(8, 5)
        self.register_buffer("scale", torch.linspace(1, 2, 8), persistent=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.stem(image))) * self.scale[:, None, None]
        return self.head(self.deep(hidden).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 11)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden, (last, _) = self.lstm(self.embed(tokens))
        return {"logits": self.head(hidden), "last": last}


class Attention(nn.Module):
    """Tied weights, a table that is not a buffer, constants made in forward, lists of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)
        self.key.weight = self.query.weight
        self.norm = nn.LayerNorm(8)
        self.table = torch.arange(8.0)

    def forward(self, pair: list[torch.Tensor], shift: torch.Tensor, times: int = 1) -> Any:
        query, key = self.query(pair[0]), self.key(pair[1]).to(shift.device)
        heads = [part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (query, key, key)]
        mixed = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)
        mixed = mixed + torch.tensor([1.0, 2.0] * 4, device=shift.device) * times
        return self.norm(mixed) + self.table.to(shift.device), mixed + shift


def own_models() -> dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]]:
    words = torch.randn(2, 3, 8)
    return {
        "convolutions": (Convolutions, (torch.randn(2, 3, 8, 8),)),
        "recurrent": (Recurrent, (torch.arange(6).view(2, 3),)),
        "attention": (Attention, ([words, words + 1], torch.ones(8))),
    }


class First(nn.Module):
    """A model of transformers that returns its first output: caches cannot be in a graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        names = ["pixel_values"] if inputs[0].dim() == 4 else ["input_ids", "decoder_input_ids"]
        return self.model(**dict(zip(names, inputs, strict=False)))[0]


_TEXT = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 40}
_WIDE = {**_TEXT, "intermediate_size": 24, "num_key_value_heads": 2}


def transformers_models() -> dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]]:
    transformers = pytest.importorskip("transformers")
    tokens = torch.arange(10).view(2, 5) + 3
    text: dict[str, tuple[str, dict[str, Any]]] = {
        "gpt2": ("GPT2LMHeadModel", {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 40}),
        "bert": ("BertForMaskedLM", {**_TEXT, "intermediate_size": 24}),
        "llama": ("LlamaForCausalLM", _WIDE),
        "mixtral": ("MixtralForCausalLM", {**_WIDE, "num_local_experts": 2}),
        "t5": (
            "T5ForConditionalGeneration",
            {"num_layers": 1, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}
            | {"vocab_size": 40},
        ),
    }

    def builder(name: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
        config_class = getattr(transformers, name).config_class
        # With a padding token, inputs are searched for it: a branch on values.
        ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
        ends |= {"decoder_start_token_id": 0, "pad_token_id": 0} if "d_kv" in options else {}
        config = config_class(**options, **ends)
        return lambda: First(getattr(transformers, name)(copy.deepcopy(config))).eval()

    models: dict[str, Any] = {}
    for name, (class_name, options) in text.items():
        inputs = (tokens, tokens[:, :3]) if name == "t5" else (tokens,)
        models[name] = (builder(class_name, options), inputs)
    image = {**_TEXT, "intermediate_size": 24, "image_size": 8, "patch_size": 4}
    models["vit"] = (
        builder("ViTForImageClassification", image),
        (torch.randn(2, 3, 8, 8),),
    )
    return models


COMPOSITE = ["recurrent"]
"""Eager runs a fused CPU kernel here; a fake runs the operators that it is composed of."""

OWN = ["convolutions", "recurrent", "attention"]
TRANSFORMERS = ["gpt2", "bert", "llama", "mixtral", "t5", "vit"]
MODELS = OWN + TRANSFORMERS


@functools.cache
def model(name: str) -> tuple[Callable[[], nn.Module], tuple[Any, ...]]:
    torch.manual_seed(1)
    return (own_models() if name in OWN else transformers_models())[name]


def eager(name: str) -> nn.Module:
    torch.manual_seed(0)
    return model(name)[0]()


def deferred(name: str) -> nn.Module:
    torch.manual_seed(0)
    return deferred_init(model(name)[0])


def on_fake_cuda(name: str) -> tuple[nn.Module, Any]:
    build, inputs = model(name)
    with fake_mode(fake_cuda=1):
        module = build().cuda()
    return module, pytree.tree_map_only(torch.Tensor, lambda t: fake_like(t, device="cuda"), inputs)
