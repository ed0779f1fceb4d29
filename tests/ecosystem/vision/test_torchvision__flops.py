"""FLOPs of torchvision's models, against the figures that torchvision publishes with weights."""

from __future__ import annotations

import pytest
import torch
from torchvision import models

from torchfake import estimate, fake_mode
from torchfake.inspect import summary

PUBLISHED = {
    "vit_b_16": models.ViT_B_16_Weights.IMAGENET1K_V1.meta["_ops"],
    "vit_b_32": models.ViT_B_32_Weights.IMAGENET1K_V1.meta["_ops"],
    "resnet50": models.ResNet50_Weights.IMAGENET1K_V1.meta["_ops"],
    "mobilenet_v2": models.MobileNet_V2_Weights.IMAGENET1K_V1.meta["_ops"],
}
"""Multiply-adds of one image, in 1e9."""


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_or_not_it_has_as_many(name: str, frozen: bool) -> None:
    with fake_mode():
        model = getattr(models, name)().eval().requires_grad_(not frozen)
        x = torch.empty(1, 3, 224, 224)
    counted = summary(model, x, device="cuda").flops[""].forward
    assert counted / 2e9 == pytest.approx(PUBLISHED[name], rel=0.005)
    timed = estimate(model, x, gpu="h100-80gb")
    assert timed.schedule is not None
    assert timed.schedule.flops == counted
