"""Bins of histograms that eager refuses, whatever the values are."""

import pytest
import torch

from tests.conftest import refused_as_in_eager
from torchfake import deferred_mode, fake_mode

CALLS = {
    "no bin": lambda: torch.histogram(torch.rand(100), 0),
    "no bin of a dim": lambda: torch.histogramdd(torch.rand(50, 2), bins=[2, 0]),
    "no bin of any dim": lambda: torch.histogramdd(torch.rand(50, 2), bins=0),
    "too few numbers of bins": lambda: torch.histogramdd(torch.rand(50, 2), bins=[2]),
    "one edge": lambda: torch.histogram(torch.rand(100), torch.rand(1)),
    "no edges": lambda: torch.histogramdd(torch.rand(50, 2), [torch.ones(3), torch.ones(0)]),
    "edges of two dims": lambda: torch.histogram(torch.rand(100), torch.rand(2, 2)),
    "a weight too few": lambda: torch.histogram(torch.rand(100), 3, weight=torch.ones(99)),
    "a weight too many": lambda: torch.histogramdd(torch.rand(50, 2), 3, weight=torch.ones(51)),
    "half a range": lambda: torch.histogramdd(torch.rand(50, 2), 3, range=[0.0, 1.0, 2.0]),
    "a range from its end": lambda: torch.histogram(torch.rand(100), 3, range=(2.0, 1.0)),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", CALLS)
def test_are_refused_with_the_error_of_eager(name, mode):
    refused_as_in_eager(CALLS[name], mode, RuntimeError)


def test_weights_may_have_another_shape_of_as_many_elements():
    with fake_mode():
        counts, edges = torch.histogram(torch.rand(50, 2), 3, weight=torch.ones(100))
        assert (counts.shape, edges.shape) == ((3,), (4,))
