"""Modules and tensors that the behaviour suites build, in a mode and in eager."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Tied(nn.Module):
    """An embedding and a head that share one weight, with a buffer beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("tiny", torch.ones(2, dtype=torch.float16), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(F.linear(x, self.head.weight)[:, :4]))


def linear() -> tuple[nn.Module, torch.Tensor]:
    return nn.Linear(4, 3), torch.randn(2, 4)


def network() -> tuple[nn.Module, torch.Tensor]:
    layers = (nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Dropout(0.1), nn.Linear(6, 3))
    return nn.Sequential(*layers), torch.randn(2, 4)


def tied() -> tuple[nn.Module, torch.Tensor]:
    return Tied(), torch.randn(2, 4)


def matrix() -> tuple[torch.Tensor]:
    return (torch.randn(3, 4),)
