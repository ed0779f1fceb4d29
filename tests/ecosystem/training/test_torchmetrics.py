"""Metrics validate values, count them and compute: with "typical" they have the shapes of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from torchmetrics import classification

from torchfake import fake_mode

MULTICLASS = (
    "Accuracy", "F1Score", "ConfusionMatrix", "AUROC", "AveragePrecision", "Precision", "Recall",
    "JaccardIndex", "CalibrationError", "MatthewsCorrCoef", "CohenKappa", "StatScores",
)  # fmt: skip
BINARY = ("Accuracy", "F1Score", "AUROC", "AveragePrecision", "Specificity", "HingeLoss")
REGRESSION = ("MeanSquaredError", "R2Score", "PearsonCorrCoef", "SpearmanCorrCoef", "MeanMetric")


def shapes(metric: Any, *inputs: torch.Tensor) -> list[tuple[int, ...]]:
    metric.update(*inputs)
    return [tuple(metric(*inputs).shape), tuple(metric.compute().shape)]


def multiclass(name: str) -> Any:
    scores, labels = torch.randn(200, 10).softmax(1), (torch.rand(200) * 10).long()
    return shapes(getattr(classification, f"Multiclass{name}")(num_classes=10), scores, labels)


def binary(name: str) -> Any:
    scores, labels = torch.rand(200), (torch.rand(200) > 0.5).long()
    return shapes(getattr(classification, f"Binary{name}")(), scores, labels)


def regression(name: str) -> Any:
    values = torch.rand(200), torch.rand(200)
    return shapes(getattr(torchmetrics, name)(), *(values[:1] if name == "MeanMetric" else values))


PROGRAMS = [
    *((multiclass, name) for name in MULTICLASS),
    *((binary, name) for name in BINARY),
    *((regression, name) for name in REGRESSION),
]


@pytest.mark.parametrize(("program", "name"), PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_a_metric_is_updated_and_computed(program: Any, name: str) -> None:
    expected = program(name)
    with fake_mode(answer="typical"):
        assert program(name) == expected
