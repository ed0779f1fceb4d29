"""Activations of a transformer layer on a GPU: the formula of Korthikanti et al., exactly.

Reducing Activation Recomputation in Large Transformer Models (2022), equation 1: a layer of hidden
size h with a heads saves s b h (34 + 5 a s / h) bytes of a batch of b sequences of s tokens, in two
bytes a number, with masks of one. It leaves out the statistics of the two layer norms.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from torchfake import fake_mode

MODELS = {  # heads, hidden size, batch, and MiB in the paper's table
    "22B": (64, 6144, 4, 6752),
    "175B": (96, 12288, 1, 2736),
    "530B": (128, 20480, 1, 3920),
    "1T": (160, 25600, 1, 4900),
}
LENGTH = 2048


class Layer(torch.nn.Module):
    """As in Megatron-LM: the order of dims is length, batch, hidden."""

    def __init__(self, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        linear, norm = torch.nn.Linear, torch.nn.LayerNorm
        self.norms = torch.nn.ModuleList([norm(hidden), norm(hidden)])
        self.qkv, self.out = linear(hidden, 3 * hidden), linear(hidden, hidden)
        self.widen, self.narrow = linear(hidden, 4 * hidden), linear(4 * hidden, hidden)

    def attend(self, x: Tensor) -> Tensor:
        length, batch, hidden = x.shape
        heads = self.qkv(x).view(length, batch * self.heads, -1).transpose(0, 1)
        query, key, value = heads.split(hidden // self.heads, -1)
        scores = functional.dropout(torch.softmax(query @ key.transpose(1, 2), -1), 0.1)
        return self.out((scores @ value).transpose(0, 1).reshape(length, batch, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.attend(self.norms[0](x)), 0.1)
        wide = functional.gelu(self.widen(self.norms[1](x)))
        return x + functional.dropout(self.narrow(wide), 0.1)


@pytest.mark.parametrize("name", MODELS)
def test_activations_of_a_layer(name: str) -> None:
    heads, hidden, batch, num_mib = MODELS[name]
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage: Any = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    with fake_mode(fake_cuda="a100-80gb"):
        layer = Layer(heads, hidden).to("cuda", torch.bfloat16)
        x = torch.empty(LENGTH, batch, hidden, device="cuda", dtype=torch.bfloat16)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = layer(x.requires_grad_())
    for parameter in layer.parameters():
        saved.pop(parameter.untyped_storage()._cdata, None)
    statistics = 2 * 2 * LENGTH * batch * 4  # mean and deviation of each row, in float32
    assert result.shape == x.shape
    assert sum(saved.values()) - statistics == num_mib * 2**20
