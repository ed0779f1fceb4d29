"""opt_einsum chooses whose functions compute by the module of a tensor's class."""

from __future__ import annotations

from typing import Any

import opt_einsum
import pytest
import torch

from tests.programs import assert_program


@pytest.mark.parametrize("equation", ["ij,jk,kl->il", "ij,jk,kl->", "ij,jk,kl->lij"])
def test_contract_computes_with_torch(equation: str) -> None:
    def program() -> Any:
        parts = [torch.nn.Parameter(torch.randn(3, 4)), torch.randn(4, 5), torch.randn(5, 6)]
        result = opt_einsum.contract(equation, *parts)
        result.sum().backward()
        return result, parts[0].grad

    assert_program(program)


def test_an_expression_computes_with_torch() -> None:
    expression = opt_einsum.contract_expression("bi,io->bo", (2, 3), (3, 4))
    assert_program(lambda: expression(torch.randn(2, 3), torch.randn(3, 4)))
