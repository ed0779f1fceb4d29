"""Parameters that compute a token: those whose matrices are multiplied with it."""

from __future__ import annotations

import cProfile

import pytest
import torch
from torch import nn

from tests.inspect.serving.served_models import served_model
from torchfake import fake_mode, summary
from torchfake.inspect import estimate
from torchfake.inspect.contents.experts import active_and_inactive, active_parameters


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "deepseek_v3"])
def test_active_parameters_are_those_that_compute(name: str) -> None:
    """The products of a token, without embeddings, norms, biases and attention's own."""
    model = served_model(name)
    found = active_parameters(model)
    assert found is not None
    matrices = {
        n: m
        for n, m in model.named_modules()
        if type(m).__name__.endswith("Experts") and "shared" not in n
    }
    routed = {id(p) for m in matrices.values() for p in m.parameters()}
    tokens = torch.zeros(1, 4, dtype=torch.long)
    flops = summary(model, tokens).flops
    computed = sum(flops[n].forward // 2 // 4 for n in matrices)
    biases = sum(
        p.numel() * 2 // 4
        for m in matrices.values()
        for n, p in m.named_parameters()
        if "bias" in n
    )
    others = sum(p.numel() for p in model.parameters() if id(p) not in routed)
    assert found.num_parameters == others + computed + biases
    assert found.experts == ("2 of 4",)


def test_lists_of_experts() -> None:
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.top_k = nn.Linear(4, 8, bias=False), 3
            self.experts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(8))
            self.shared_experts = nn.Linear(4, 4, bias=False)

    found = active_parameters(Router())
    assert found == (4 * 8 + 3 * 16 + 16, ("3 of 8",))


def test_a_grid_of_experts_without_a_number_is_not_counted() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.ones(2, 2, 4, 4))

    assert active_parameters(nn.ModuleDict({"experts": Experts()})) is None


@pytest.mark.parametrize("names_chosen", [False, True])
def test_finding_them_is_linear(names_chosen: bool) -> None:
    """In calls of functions. Where no router says how many are chosen, each expert asks."""

    class StackedExperts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_experts, self.weight = 2, nn.Parameter(torch.empty(2, 3))

    class Routed(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(StackedExperts() for _ in range(number))
            if names_chosen:
                self.top_k = 1

    def calls(number: int) -> int:
        module = Routed(number)
        profiler = cProfile.Profile()
        active, inactive = profiler.runcall(active_and_inactive, module)
        assert (active is not None) is names_chosen
        assert inactive.get("", 0) == (3 * number if names_chosen else 0)
        return sum(entry.callcount for entry in profiler.getstats())

    with fake_mode():
        small, large = calls(10), calls(100)
    assert large < 11 * small


def test_results_name_them() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    with fake_mode():
        model = MixtralForCausalLM(MixtralConfig())
    found = summary(model)
    assert found.active == (12_879_925_248, ("2 of 8",))
    assert "active      12,879,925,248 (12.9B), 2 of 8 experts for each token" in str(found)
    assert found.to_dict()["active"]["num_parameters"] == 12_879_925_248
    step = estimate(model, torch.zeros(1, 2, dtype=torch.long))
    assert "model          MixtralForCausalLM, 46.7B parameters, active 12,879,925,248" in str(step)
    assert summary(nn.Linear(3, 4)).active is None


def test_the_tree_says_which_parameters_are_active() -> None:
    transformers = pytest.importorskip("transformers")
    with fake_mode():
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(num_hidden_layers=2))
    found = summary(model)
    assert found.active is not None
    whole = sum(p.numel() for p in model.parameters())
    assert whole - found.inactive[""] == found.active.num_parameters
    assert found.inactive["model.layers.0.mlp"] == found.inactive["model.layers.0.mlp.experts"]
    rows = found._rows(found.tree, "")
    assert next(rows)["num_active"] == found.active.num_parameters
    assert "  active  " in str(found).splitlines()[2]
    assert "active" not in str(summary(nn.Linear(3, 4)))


@pytest.mark.parametrize("has_matrix", [False, True])
def test_a_module_that_is_called_an_expert_need_not_hold_several(has_matrix: bool) -> None:
    class Expert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 4)) if has_matrix else None
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if self.w is None else self.linear(x @ self.w)

    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts, self.MyExpert = Expert(), Expert()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.experts(x) + self.MyExpert(x)

    x = torch.ones(2, 4)
    assert summary(Owner(), x).active is None
    assert estimate(Owner(), x).active is None
    assert "experts for" not in str(summary(Owner())) + str(estimate(Expert(), x))
