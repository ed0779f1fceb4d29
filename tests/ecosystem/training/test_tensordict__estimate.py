"""Estimates of modules that hold TensorDicts, and take them."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, TensorDictParams
from tensordict.nn import TensorDictModule
from torch import nn

from torchfake import estimate
from torchfake.inspect import summary


@pytest.mark.parametrize("batch_size", [[], [3]])
def test_modules_that_hold_them(batch_size: list[int]) -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.data = TensorDict({"a": torch.zeros(3)}, batch_size=batch_size)
            self.held = TensorDictParams(TensorDict({"w": torch.zeros(4)}, batch_size=[]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) + self.held["w"]

    found = estimate(Holds(), torch.ones(2, 4))
    assert found.peak.by_category["parameters"] == 4 * (16 + 4 + 4)
    assert "inference on cpu" in str(found)


def test_a_tensordict_as_the_input() -> None:
    module = TensorDictModule(nn.Linear(4, 2), in_keys=["x"], out_keys=["y"])
    given = TensorDict({"x": torch.ones(3, 4), "next": {"reward": torch.ones(3)}}, [3])
    found = estimate(module, given)
    assert found.peak.by_category["inputs"] == 4 * (12 + 3)
    assert summary(module, given).flops[""].forward == 2 * 3 * 4 * 2
    assert given.get("y", None) is None
