"""Options of a step: those that are wrong or contradict each other are named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchfake.errors import InputsError
from torchfake.inspect import estimate


@pytest.mark.parametrize(
    "options", [{"round_to": 0}, {"round_to": "512"}, {"workspace_bytes": -1}, {"loss": "ce"}]
)
def test_options_of_wrong_values(options: dict[str, Any]) -> None:
    with pytest.raises(InputsError, match=next(iter(options))):
        estimate(nn.Linear(3, 3), torch.ones(2, 3), **options)


def test_modes_and_options_that_contradict_each_other() -> None:
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    with pytest.raises(InputsError, match="mode='train' is not training"):
        estimate(layer, x, mode="train")
    with pytest.raises(InputsError, match="an optimizer is for training"):
        estimate(layer, x, mode="inference", optimizer="sgd")
    with pytest.raises(InputsError, match=r"decode=\(0, 3\): give"):
        estimate(layer, x, decode=(0, 3))
