"""The module that allocates, in the forward pass, in the backward pass and in recomputation."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from torch import nn

from tests.inspect.small_models import model_and_inputs
from torchfake.inspect import estimate


def test_backward_and_recomputation_have_their_modules() -> None:
    model, inputs = model_and_inputs("llama")
    found = estimate(model, inputs, mode="training")
    lives = found.lives
    backward = {lives.module[i] for i in np.flatnonzero(lives.phase == 2)}
    assert {"model.layers.0.mlp.act_fn", "model.layers.2.self_attn.q_proj"} <= backward


def test_a_module_whose_error_was_caught_is_no_longer_running() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(5, 6)
            self.weight = nn.Parameter(torch.ones(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(RuntimeError):
                self.inner(x)
            return x @ self.weight

    found = estimate(Tries(), torch.ones(2, 3), mode="forward")
    assert found.by_module[""]["activations"] == 2 * 4 * 4
