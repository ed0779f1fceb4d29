"""The loss of a plan: a function of the output, which may refer to tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from torchfake.distributed import plan


def test_labels_that_a_loss_refers_to_are_on_the_gpu_of_each_rank() -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    found = plan(
        lambda: nn.Linear(8, 4),
        mesh_shape=2,
        inputs=torch.ones(2, 8),
        optimizer="sgd",
        loss=lambda out: F.cross_entropy(out, labels),
        gpu="l4-24gb",
    )
    assert found.fits
