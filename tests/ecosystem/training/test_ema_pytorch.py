"""ema-pytorch: a moving average beside a model that is trained, and copied back into it."""

from __future__ import annotations

from typing import Any

import ema_pytorch
import pytest
import torch
from torch import nn

from tests.programs import assert_program
from torchfake import fake_mode

NOW = {"update_every": 1, "update_after_step": 0}
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "later": {"beta": 0.9, "update_after_step": 1, "update_every": 1},
    "warm": {**NOW, "power": 2 / 3, "inv_gamma": 1.0},
    "foreach": {**NOW, "use_foreach": True},
    "without": {**NOW, "param_or_buffer_names_no_ema": {"1.running_mean"}},
    "ignored": {**NOW, "ignore_names": {"0.weight"}},
    "switched": {**NOW, "update_model_with_ema_every": 2},
    "cast": {**NOW, "coerce_dtype": True},
    "not registered": {**NOW, "include_online_model": False},
}


def train(name: str) -> Any:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    mean = ema_pytorch.EMA(model, **OPTIONS[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(7, 6)).sum().backward()
        optimizer.step()
        mean.update()
    result = mean(torch.randn(3, 6))
    mean.copy_params_from_ema_to_model()
    again = ema_pytorch.EMA(model, **OPTIONS[name])
    again.load_state_dict(mean.state_dict())
    return model, mean, result, again


@pytest.mark.parametrize("name", OPTIONS)
def test_averages(name: str) -> None:
    assert_program(lambda: train(name))
    with fake_mode(fake_cuda=True), torch.device("cuda"):
        assert train(name)[2].device == torch.device("cuda:0")
