"""Models and modules that are saved and loaded, and what is compared of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging

from tests.oracle import bits
from tests.tiny_tiles import tiny_tiles
from torchfake import (
    deferred_init,
    errors,
    is_deferred,
    materialize_module,
)

SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 200,
    "num_attention_heads": 4,
}  # fmt: skip


MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=4)),
    "bert, tied": lambda: BertForMaskedLM(BertConfig(**SMALL)),
    "mixtral, converted": lambda: MixtralForCausalLM(
        MixtralConfig(**SMALL, num_key_value_heads=4, num_local_experts=3)
    ),
    "t5, tied thrice": lambda: T5ForConditionalGeneration(
        T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=200)
    ),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    yield
    if was_enabled:
        logging.enable_progress_bar()


@pytest.fixture(params=["whole", "tiles"])
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "whole":
        yield
    else:
        with tiny_tiles():
            yield


class Plain(nn.Module):
    """Ties, buffers of both kinds, an integer, an empty tensor, views, and a draw whose number of
    random values cannot be counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 30)
        self.second = nn.Linear(20, 30)
        self.second.weight = self.first.weight
        self.short = nn.Parameter(torch.randn(33, 9).to(torch.bfloat16))
        self.turned = nn.Parameter(torch.rand(7, 40).t())
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(30, 20)))
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("constant", torch.tensor(3.5, dtype=torch.float64))
        self.register_buffer("left_out", torch.arange(4.0), persistent=False)
        both = torch.randn(8, 10)
        self.register_buffer("upper", both[:4])
        self.register_buffer("lower", both[4:])


def build_linear() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))


def seeded(build: Any, *, deferred: bool, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return deferred_init(build) if deferred else build()


def state_bits(module: nn.Module) -> dict[str, bytes]:
    return {name: bits(tensor) for name, tensor in module.state_dict().items()}


def values_of(folder: Path) -> dict[str, bytes]:
    found = {}
    for file in folder.glob("*.safetensors"):
        for name, tensor in safetensors.torch.load_file(file).items():
            found[name] = bits(tensor)
    return found


def saved(state: dict[str, torch.Tensor], folder: Path, kind: str) -> Any:
    if kind == "dict":
        return state
    if kind == "safetensors":
        path = folder / "some.safetensors"
        safetensors.torch.save_file({k: v.contiguous() for k, v in state.items()}, path)
        return path
    path = folder / "some.pt"
    torch.save(
        {"state_dict": state} if kind == "nested" else state, path,
        _use_new_zipfile_serialization=kind != "old",
    )  # fmt: skip
    return str(path)


def refusal(module: nn.Module, checkpoint: Any, **how: Any) -> str:
    """The error message; nothing has changed."""
    version = [p._fake_storage.deferred.contents for p in module.parameters()]  # type: ignore[attr-defined]
    with pytest.raises(errors.CheckpointError) as caught:
        materialize_module(module, checkpoint=checkpoint, **how)
    assert all(is_deferred(p) for p in module.parameters())
    assert version == [p._fake_storage.deferred.contents for p in module.parameters()]  # type: ignore[attr-defined]
    return str(caught.value)
