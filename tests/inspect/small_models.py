"""The models that memory is compared on: small ones of each kind, with inputs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]


def cache_name(model: nn.Module) -> str:
    """What a model of transformers calls its cache: ``cache`` since version 5.24."""
    names = inspect.signature(model.forward).parameters
    return next(n for n in ("cache", "cache_params", "past_key_values") if n in names)


class Block(nn.Module):
    """A residual block, as in ResNet."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(width, out, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu_(self.bn1(self.conv1(x)))
        return torch.relu_(self.bn2(self.conv2(h)) + self.skip(x))


class ConvNet(nn.Module):
    """Like a ResNet, three stages of two blocks."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3)
        self.pool = nn.MaxPool2d(3, 2, 1)
        stages = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.blocks = nn.Sequential(
            *(b for i, o, s in stages for b in (Block(i, o, s), Block(o, o, 1)))
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.pool(self.stem(x))).mean((2, 3)))


def convnet() -> tuple[nn.Module, Inputs]:
    return ConvNet(), {"x": torch.randn(4, 3, 32, 32)}


def _tokens(length: int = 16) -> Inputs:
    ids = torch.randint(3, 90, (2, length))
    return {"input_ids": ids, "labels": ids.clone()}


def gpt2() -> tuple[nn.Module, Inputs]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=3, n_embd=32, n_head=4, vocab_size=100, n_positions=64, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config), _tokens()


def llama() -> tuple[nn.Module, Inputs]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=3, hidden_size=32, intermediate_size=64, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=100,
    )  # fmt: skip
    return LlamaForCausalLM(config), _tokens()


def t5() -> tuple[nn.Module, Inputs]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=2, d_model=32, d_kv=8, d_ff=64, num_heads=4, vocab_size=100,
        decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config), _tokens()


def vit() -> tuple[nn.Module, Inputs]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64,
        image_size=32, patch_size=8, num_labels=3,
    )  # fmt: skip
    images = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 2])}
    return ViTForImageClassification(config), images


MODELS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "convnet": convnet, "gpt2": gpt2, "llama": llama, "t5": t5, "vit": vit,
}  # fmt: skip


def model_and_inputs(name: str) -> tuple[nn.Module, Inputs]:
    """The model and its inputs, the same each time."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MODELS[name]()
