"""neuraloperator: Fourier layers, whose einsums are opt_einsum's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from neuralop.models import FNO, TFNO

from tests.programs import assert_program

SIZES: dict[str, Any] = {"n_modes": (4, 4), "hidden_channels": 8, "in_channels": 2}
TUCKER = {"factorization": "tucker", "implementation": "factorized", "rank": 0.1}


@pytest.mark.parametrize("model", [lambda: FNO(**SIZES, out_channels=1, n_layers=2)])
def test_fourier_operators_are_trained(model: Any) -> None:
    def program() -> Any:
        module = model()
        result = module(torch.randn(1, 2, 8, 8))
        result.sum().backward()
        return module, result

    assert_program(program)


def test_factorized_weights() -> None:
    def program() -> Any:
        module = TFNO(**SIZES, out_channels=1, n_layers=1, **TUCKER)
        return module(torch.randn(1, 2, 8, 8)).detach()

    assert_program(program)
