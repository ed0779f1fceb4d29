"""segmentation_models_pytorch: networks that pool features to small maps and resize them."""

from __future__ import annotations

import pytest
import segmentation_models_pytorch as smp
import torch
from torch import nn

from tests.ecosystem.families import assert_family, trained
from tests.programs import assert_fake

NETWORKS = ("UPerNet", "PSPNet", "FPN", "DeepLabV3Plus")


def inputs() -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, 64, 64),)


def build(network: str, encoder: str = "resnet18") -> nn.Module:
    return getattr(smp, network)(encoder, encoder_weights=None)  # type: ignore[no-any-return]


@pytest.mark.parametrize("network", NETWORKS)
def test_networks(network: str) -> None:
    assert_family(lambda: build(network), inputs)


def test_channels_last() -> None:
    def in_channels_last() -> tuple[torch.Tensor]:
        return (inputs()[0].to(memory_format=torch.channels_last),)

    assert_fake(trained(lambda: build("UPerNet"), in_channels_last))


@pytest.mark.parametrize("encoder", ["mobilenet_v2", "timm-regnetx_002", "mit_b0"])
def test_encoders(encoder: str) -> None:
    assert_fake(trained(lambda: build("UPerNet", encoder), inputs))
