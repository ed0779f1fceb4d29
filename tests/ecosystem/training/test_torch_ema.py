"""torch-ema: shadow parameters beside a model, swapped in for a validation, saved and loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_ema import ExponentialMovingAverage

from tests.programs import assert_program


def train(num_updates: bool) -> Any:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    mean = ExponentialMovingAverage(model.parameters(), 0.9, use_num_updates=num_updates)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(7, 6)).sum().backward()
        optimizer.step()
        mean.update()
    optimizer.zero_grad()
    with torch.no_grad(), mean.average_parameters():
        result = model(torch.randn(3, 6))
    again = ExponentialMovingAverage(model.parameters(), 0.5)
    again.load_state_dict(mean.state_dict())
    mean.copy_to()
    return model, mean.shadow_params, result, again.shadow_params


@pytest.mark.parametrize("num_updates", [False, True])
def test_averages(num_updates: bool) -> None:
    assert_program(lambda: train(num_updates))
