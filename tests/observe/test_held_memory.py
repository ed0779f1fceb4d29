"""Tensors that hold others count for what these take: in sums, in estimates, in fake copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.quantized_tensor import Packed, Quantized, quantized_net
from torchfake import deferred_init, diff, estimate, fake_like, fake_mode, fit, is_fake, summary
from torchfake._torch import subclass

BYTES = 2 * 8 * 32 + (32 + 8) * 4 + (32 + 8) * 4
"""Codes, scales and biases of the small net."""


def memory_of(module: nn.Module) -> int:
    """The bytes of all storages, those inside of wrappers too."""
    leaves = [leaf for p in module.parameters() for leaf in subclass.leaf_tensors(p)]
    storages = [leaf.untyped_storage() for leaf in leaves]
    return sum({subclass.storage_key(s): s.nbytes() for s in storages}.values())


@pytest.mark.parametrize("nested", [False, True], ids=["one level", "nested"])
@pytest.mark.parametrize("build", ["real", "fake", "deferred", "copied"])
def test_a_wrapper_has_the_bytes_of_what_is_inside(nested: bool, build: str) -> None:
    real = quantized_net(nested=nested)
    if build == "fake":
        with fake_mode():
            net = quantized_net(nested=nested)
    elif build == "deferred":
        net = deferred_init(quantized_net, nested=nested)
    else:
        net = real if build == "real" else fake_like(real)
    assert is_fake(net) == is_fake(net[0].weight) == (build != "real")
    found = summary(net)
    assert found.tree.size.parameter_bytes == memory_of(real) == memory_of(net)
    assert found.tree.size == summary(real).tree.size
    assert nested or memory_of(real) == BYTES


def test_estimates_and_fits_count_what_is_inside() -> None:
    net, x = quantized_net(), torch.ones(3, 8)
    assert estimate(net, x, mode="inference").peak.by_category["parameters"] == BYTES
    step = estimate(net, x, mode="inference", gpu="h100-80gb")
    assert fit(step, "h100-80gb")
    assert not diff(net, fake_like(net)).changed


def test_a_step_trains_what_is_not_quantized() -> None:
    step = estimate(quantized_net(), torch.ones(3, 8), optimizer="adamw")
    assert step.peak.by_category["parameters"] == BYTES


def test_attributes_of_a_parameter_count_and_are_copied() -> None:
    net = nn.Linear(8, 32)
    net.weight = Packed(net.weight.detach())
    net.state = net.weight.state  # the module has the same object, as bitsandbytes' has
    assert summary(net).tree.size.parameter_bytes == 8 * 32 + 32 * 4 + 32 * 4
    copied: Any = fake_like(net)
    assert copied.state is copied.weight.state is not net.state
    assert is_fake(copied.weight.state.scales[0])
    assert not is_fake(net.state.scales[0])
    assert summary(copied).tree.size == summary(net).tree.size


def test_blocks_that_hold_different_memory_are_not_folded() -> None:
    one, other = (nn.Linear(8, 8, bias=False) for _ in range(2))
    other.weight = nn.Parameter(Quantized.of(other.weight.detach()))
    tree = summary(nn.ModuleList([one, other])).tree
    assert [child.size.parameter_bytes for child in tree.children] == [256, 96]
