"""A small conv_network, and one training step of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def conv_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.GELU()
    )


def train_conv_network() -> Any:
    module = conv_network()
    output = module(torch.randn(2, 3, 8, 8))
    output.sum().backward()
    return module, output
