"""kornia: filters, colours, geometry, losses and augmentations as modules; models of features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kornia import augmentation, color, enhance, feature, filters, geometry, losses
from kornia.models.vit import VisionTransformer

from tests.ecosystem.families import assert_family

LAYERS: dict[str, Any] = {
    "gaussian_blur": lambda: filters.GaussianBlur2d((3, 3), (1.0, 1.0)),
    "sobel": lambda: filters.Sobel(),
    "laplacian": lambda: filters.Laplacian(3),
    "unsharp": lambda: filters.UnsharpMask((3, 3), (1.0, 1.0)),
    "lab": lambda: color.RgbToLab(),
    "ycbcr": lambda: color.RgbToYcbcr(),
    "hsv": lambda: color.RgbToHsv(),
    "normalize": lambda: enhance.Normalize(torch.rand(3), torch.rand(3) + 0.5),
    "rotate": lambda: geometry.transform.Rotate(torch.tensor([30.0])),
    "resize": lambda: geometry.transform.Resize((8, 8)),
    "pyramid": lambda: geometry.transform.PyrDown(),
    "total_variation": lambda: losses.TotalVariation(),
    "flip": lambda: augmentation.RandomHorizontalFlip(p=0.5),
    "affine": lambda: augmentation.RandomAffine(15.0, p=1.0),
    "jitter": lambda: augmentation.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0),
}
MODELS: dict[str, Any] = {
    "vit": lambda: VisionTransformer(
        image_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2
    ),
    "responses": lambda: feature.KeyNet(pretrained=False),
}
PATCHES: dict[str, Any] = {
    "hardnet": lambda: feature.HardNet(pretrained=False),
    "hynet": lambda: feature.HyNet(pretrained=False),
    "sosnet": lambda: feature.SOSNet(pretrained=False),
    "tfeat": lambda: feature.TFeat(pretrained=False),
}
PAIRS: dict[str, Any] = {
    "ssim": lambda: losses.SSIMLoss(5),
    "ms_ssim": lambda: losses.MS_SSIMLoss(sigmas=[0.5, 1.0]),
    "psnr": lambda: losses.PSNRLoss(1.0),
    "charbonnier": lambda: losses.CharbonnierLoss(),
}


def image() -> torch.Tensor:
    return torch.rand(2, 3, 16, 16, requires_grad=True)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    assert_family(LAYERS[name], lambda: (image(),), answer="typical")


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    channels = 1 if name == "responses" else 3
    assert_family(MODELS[name], lambda: (image()[:, :channels],))


@pytest.mark.parametrize("name", PATCHES)
def test_descriptors(name: str) -> None:
    assert_family(PATCHES[name], lambda: (torch.rand(4, 1, 32, 32),))


@pytest.mark.parametrize("name", PAIRS)
def test_losses(name: str) -> None:
    assert_family(PAIRS[name], lambda: (image(), image().detach()), answer="typical")
