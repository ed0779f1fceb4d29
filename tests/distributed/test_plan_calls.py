"""Calls of ``plan`` that Python would refuse, and what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchfake
from torchfake.distributed import plan
from torchfake.distributed.target_plans.adapted import precision_for

CALL = (
    r"plan\(lambda: Model\(\), mesh_shape={}, "
    r"inputs=torchfake.example_inputs\(model, batch=..., seq=...\), gpu=...\)$"
)


@pytest.mark.parametrize("function", [plan, torchfake.plan])
@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((torch.ones(1, 4),), {"gpus": 4}, f"takes one argument .*, not 2: give {CALL.format(4)}"),
        ((), {"gpus": 2}, f"plan has no gpus=: give {CALL.format(2)}"),
        ((), {"inputs": torch.ones(1, 4)}, f"plan needs mesh_shape=, .*: give {CALL.format(8)}"),
    ],
)
def test_a_wrong_call_is_answered_with_a_right_one(
    function: Any, args: Any, options: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        function(nn.Linear(4, 4), *args, **options)


def test_of_a_name_the_function_that_takes_names_is_given() -> None:
    call = r"distributed.plan_target\('gpt2', gpus=8, batch=4, gpu='h100-80gb'\)$"
    with pytest.raises(TypeError, match=call):
        plan("gpt2", gpus=8, gpu="h100-80gb", batch=4)  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize(
    ("given", "lora", "precision"),
    [(None, None, "mixed"), (None, 16, "bf16"), ("mixed", 16, "mixed")],
)
def test_a_frozen_model_is_held_in_bf16_unless_another_precision_is_given(
    given: str | None, lora: int | None, precision: str
) -> None:
    assert precision_for(given, None, lora) == precision
