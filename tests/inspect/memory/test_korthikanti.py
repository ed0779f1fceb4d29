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

from tests.published.models import TransformerLayer
from torchfake import fake_mode

MODELS = {  # heads, hidden size, batch, and MiB in the paper's table
    "22B": (64, 6144, 4, 6752),
    "175B": (96, 12288, 1, 2736),
    "530B": (128, 20480, 1, 3920),
    "1T": (160, 25600, 1, 4900),
}
LENGTH = 2048


@pytest.mark.parametrize("name", MODELS)
def test_activations_of_a_layer(name: str) -> None:
    heads, hidden, batch, num_mib = MODELS[name]
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage: Any = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    with fake_mode(fake_cuda="a100-80gb"):
        layer = TransformerLayer(hidden, heads, recomputes_attention=False)
        layer = layer.to("cuda", torch.bfloat16)
        x = torch.empty(batch, LENGTH, hidden, device="cuda", dtype=torch.bfloat16)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = layer(x.requires_grad_())
    for parameter in layer.parameters():
        saved.pop(parameter.untyped_storage()._cdata, None)
    statistics = 2 * 2 * LENGTH * batch * 4  # mean and deviation of each row, in float32
    assert result.shape == x.shape
    assert sum(saved.values()) - statistics == num_mib * 2**20
