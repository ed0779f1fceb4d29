"""botorch: models with priors and constraints, their losses, posteriors and acquisitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.acquisition import ExpectedImprovement, UpperConfidenceBound, qLogExpectedImprovement
from botorch.models import MultiTaskGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import nn

from tests.ecosystem.families import assert_family, assert_inspected, assert_materialized
from tests.programs import assert_deferred, assert_fake


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(8, 2, dtype=torch.float64)
    return x, x.sin().sum(-1, keepdim=True)


def single() -> Any:
    return SingleTaskGP(*data(), outcome_transform=None)


def transformed() -> Any:
    return SingleTaskGP(*data(), input_transform=Normalize(2), outcome_transform=Standardize(1))


def of_several_tasks() -> Any:
    x, y = data()
    task = torch.arange(2, dtype=torch.float64).repeat(4)[:, None]
    return MultiTaskGP(torch.cat([x, task], -1), y, task_feature=-1, outcome_transform=None)


MODELS: dict[str, Any] = {
    "single": single, "transformed": transformed, "of_several_tasks": of_several_tasks,
}  # fmt: skip
ACQUISITIONS: dict[str, Any] = {
    "expected_improvement": lambda model: ExpectedImprovement(model, best_f=0.5),
    "confidence_bound": lambda model: UpperConfidenceBound(model, beta=0.1),
    "sampled": lambda model: qLogExpectedImprovement(
        model, best_f=0.5, sampler=SobolQMCNormalSampler(torch.Size([16]), seed=1)
    ),
}


class Loss(nn.Module):
    """The marginal likelihood of a model's own data, as it is maximised to fit the model."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = MODELS[name]()
        self.likelihood = ExactMarginalLogLikelihood(self.model.likelihood, self.model)

    def forward(self) -> Any:
        self.train()
        return -self.likelihood(
            self.model(*self.model.train_inputs), self.model.train_targets, self.model.train_inputs
        )


@pytest.mark.parametrize("name", MODELS)
def test_models_are_fitted(name: str) -> None:
    assert_family(lambda: Loss(name), lambda: (), answer="typical")


@pytest.mark.parametrize("name", ["single", "transformed"])
@pytest.mark.parametrize("acquisition", ACQUISITIONS)
def test_acquisitions(name: str, acquisition: str) -> None:
    def build() -> Any:
        return ACQUISITIONS[acquisition](MODELS[name]().eval())

    def program() -> Any:
        x = torch.rand(3, 1, 2, dtype=torch.float64, requires_grad=True)
        value = build()(x)
        value.sum().backward()
        return value.detach(), x.grad

    assert_fake(program, answer="typical")
    assert_deferred(program)
    assert_materialized(build)
    assert_inspected(build, lambda: (torch.rand(3, 1, 2, dtype=torch.float64),), "typical")
