"""What is assumed of a router's choice, and what is left unknown."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from torchfake.distributed import Plan, plan
from torchfake.errors import InputsError, UnknownValueError
from torchfake.inspect import check, estimate, summary


class Counts(nn.Module):
    """Counts how many of its tokens go to each expert, as programs do, and reads that."""

    def __init__(self, count: str, found: list[Any]) -> None:
        super().__init__()
        self.count, self.found = count, found
        self.router = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)  # of which nobody knows the values
        scores = self.router(x)
        chosen = scores.topk(2).indices.flatten()
        if self.count == "histc":
            counts = torch.histc(chosen.float(), bins=6, min=0, max=6).int()
        elif self.count == "map":
            chosen = chosen.view(1, -1, 2)
            zeros = torch.zeros(1, len(x), 6, dtype=torch.bool)
            counts = zeros.scatter_(-1, chosen, True).sum(dim=(0, 1))
        elif self.count == "one_hot":
            counts = nn.functional.one_hot(chosen, 6).sum(0)
        elif self.count == "other map":
            zeros = torch.zeros(len(x), 6)
            counts = zeros.scatter_(-1, chosen.view(-1, 2), 1).mul_(scores.detach()).sum(0).long()
        else:
            counts = torch.zeros(6, dtype=torch.long)
            counts.scatter_add_(0, chosen, torch.ones_like(chosen))
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        self.found.append((counts.tolist(), received.tolist()))
        return scores


def planned(count: str, found: list[Any], tokens: int = 6, **options: Any) -> Plan:
    inputs = torch.empty(tokens, 8)
    return plan(
        lambda: Counts(count, found),
        mesh_shape=3,
        inputs=inputs,
        device="cpu",
        ranks=[1],
        **options,
    )


@pytest.mark.parametrize("count", ["scatter_add", "histc", "map", "one_hot"])
def test_experts_get_equally_many_tokens(count: str) -> None:
    found: list[Any] = []
    plans = planned(count, found, routing="balanced")
    assert found == [([2] * 6, [2] * 6)]
    answers = plans.of_rank(1).estimate.answers
    assert {answer.answered_by for answer in answers} == {"balanced routing"}


def test_what_does_not_divide_is_spread() -> None:
    found: list[Any] = []
    planned("scatter_add", found, tokens=4, routing="balanced")
    ((counts, received),) = found
    assert sum(counts) == 8
    assert sorted(counts) == [1, 1, 1, 1, 2, 2]
    assert received == counts[2:4] * 3  # each rank sends its second part to rank 1


def test_nothing_is_assumed_if_no_plan_says_so() -> None:
    with pytest.raises(UnknownValueError, match="tolist"):
        planned("scatter_add", [])
    with pytest.raises(InputsError, match="routing='even': give 'balanced'"):
        planned("scatter_add", [], routing="even")


def test_a_map_that_was_written_to_is_none() -> None:
    with pytest.raises(UnknownValueError):
        planned("other map", [], routing="balanced")


class Mixture(nn.Module):
    """Gives each of eight experts a buffer as long as the most tokens that one of them gets."""

    def __init__(self, count: str) -> None:
        super().__init__()
        self.count = count
        self.router = nn.Linear(64, 8)
        self.experts = nn.Parameter(torch.empty(8, 64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.router(x).topk(2, -1).indices
        if self.count == "bincount":
            counts = torch.bincount(chosen.flatten(), minlength=8)
        elif self.count == "compared":
            counts = (chosen.unsqueeze(-1) == torch.arange(8, device=x.device)).sum((0, 1))
        else:  # first a row for each token
            counts = nn.functional.one_hot(chosen, 8).sum(1).sum(0)
        capacity = int(counts.max())
        return torch.bmm(x.new_zeros(8, capacity, 64), self.experts)


@pytest.mark.parametrize("count", ["bincount", "compared", "in two steps"])
def test_the_capacity_of_typical_answers_is_balanced(count: str) -> None:
    model, x = Mixture(count), torch.empty(128, 64)
    checked = check(model, x, answer="typical")
    assert tuple(checked.output.shape) == (8, 128 * 2 // 8, 64)
    assert {answer.answered_by for answer in checked.answers} >= {"balanced routing"}
    found = estimate(model, x, answer="typical")
    made = found.to_pandas().query("op == 'aten.bmm.default'")
    assert made.num_bytes.tolist() == [4 * 8 * 32 * 64]
    flops = summary(model, x, answer="typical").flops_of([""]).forward
    assert flops == 2 * 128 * 64 * 8 + 2 * 8 * 32 * 64 * 64  # the router, the experts
