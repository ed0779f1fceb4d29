"""diffusers' EMAModel: a moving average of a model that is trained, stored, copied, restored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers.training_utils import EMAModel
from torch import nn

from tests.programs import assert_program

OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "warm": {"use_ema_warmup": True},
    "foreach": {"foreach": True},
    "later": {"update_after_step": 1, "decay": 0.5},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.filterwarnings("ignore")
def test_averages(name: str) -> None:
    def program() -> Any:
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
        mean = EMAModel(model.parameters(), **OPTIONS[name])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(7, 6)).sum().backward()
            optimizer.step()
            mean.step(model.parameters())
        mean.store(model.parameters())
        mean.copy_to(model.parameters())
        result = model(torch.randn(3, 6)).detach()
        mean.restore(model.parameters())
        again = EMAModel(nn.Linear(2, 2).parameters())
        again.load_state_dict(mean.state_dict())
        mean.to(dtype=torch.float64)
        return model, mean.shadow_params, result, again.shadow_params, mean.cur_decay_value

    assert_program(program)
