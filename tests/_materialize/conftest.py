"""Modules built twice under one seed: by eager, and deferred."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchfake import deferred_init


def pair(build: Callable[[], Any]) -> tuple[Any, Any]:
    """Eager's, and the deferred one under the same seed."""
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    return eager, deferred_init(build)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2)))
