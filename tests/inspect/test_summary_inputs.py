"""``summary`` of modules that take keyword inputs, and of modules whose weights are computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from torchfake import deferred_init, summary


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, *, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found if mask is None else found * mask


@pytest.mark.parametrize("mask", [None, torch.ones(4)])
def test_a_mapping_has_keyword_inputs(mask: torch.Tensor | None) -> None:
    found = summary(Masked(), {"x": torch.randn(2, 3), "mask": mask})
    assert found.flops["layer"].forward == 48
    assert summary(nn.Linear(3, 4), {"input": torch.randn(2, 3)}).flops[""].forward == 48


def _pruned() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    prune.l1_unstructured(module[0], "weight", 0.5)  # type: ignore[no-untyped-call]
    prune.random_unstructured(module[0], "bias", 0.5)  # type: ignore[no-untyped-call]
    return module


def _trained() -> nn.Module:
    module = _pruned()
    module(torch.randn(2, 3)).sum().backward()
    return module


def _normed() -> nn.Module:
    module = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 5))
    module(torch.randn(2, 3))
    return module


@pytest.mark.parametrize("build", [_pruned, _trained, _normed, lambda: deferred_init(_pruned)])
@pytest.mark.parametrize("device", [None, "cuda"])
def test_weights_that_are_computed(build: Callable[[], nn.Module], device: str | None) -> None:
    found = summary(build(), torch.randn(2, 3), device=device)
    assert found.flops[""].forward == 128
    by_name = summary(build(), {"input": torch.randn(2, 3)}, device=device)
    assert by_name.flops[""].forward == 128
