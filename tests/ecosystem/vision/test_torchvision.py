"""Detectors draw, select and suppress boxes: with "typical" they train and detect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision import ops
from torchvision.models import detection
from torchvision.transforms import v2

from torchfake import fake_mode

DETECTORS = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large", "fcos_resnet50_fpn",
)  # fmt: skip
LOSSES = {"maskrcnn_resnet50_fpn": "loss_mask", "keypointrcnn_resnet50_fpn": "loss_keypoint"}


def images() -> list[torch.Tensor]:
    return [torch.rand(3, 200, 240), torch.rand(3, 180, 200)]


def target(image: torch.Tensor) -> dict[str, torch.Tensor]:
    corner, size = torch.rand(3, 2) * 80, torch.rand(3, 2) * 60 + 10
    return {
        "boxes": torch.cat([corner, corner + size], 1),
        "labels": torch.ones(3).long(),
        "masks": torch.zeros(3, *image.shape[1:], dtype=torch.uint8),
        "keypoints": torch.cat([torch.rand(3, 17, 2) * 80, torch.ones(3, 17, 1)], -1),
    }


def detector(name: str) -> Any:
    return getattr(detection, name)(weights=None, weights_backbone=None)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_trains(name: str) -> None:
    with fake_mode(answer="typical"):
        model = detector(name).train()
        losses = model(images(), [target(image) for image in images()])
        torch.stack([*losses.values()]).sum().backward()
        assert all(loss.shape == () for loss in losses.values())
        assert LOSSES.get(name, "") in ("", *losses)
        assert any(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_finds_as_many_boxes_as_it_may(name: str) -> None:
    with fake_mode(answer="typical"):
        model = detector(name).eval()
        for found in model(images()):
            assert len({len(value) for value in found.values()}) == 1
            assert found["boxes"].shape[1:] == (4,)
            assert 0 < len(found["boxes"]) <= 300


def test_operators_on_boxes() -> None:
    def program() -> list[Any]:
        corner = torch.rand(100, 2) * 50
        boxes = torch.cat([corner, corner + 10], 1)
        x = torch.rand(1, 8, 32, 32, requires_grad=True)
        pooled = ops.roi_align(x, torch.cat([torch.zeros(100, 1), boxes], 1), 7)
        pooled.sum().backward()
        kept = ops.nms(boxes, torch.rand(100), 0.5)
        return [
            pooled.shape,
            pooled.stride(),
            kept.dtype,
            kept.stride(),
            ops.box_iou(boxes, boxes).shape,
        ]

    expected = program()
    with fake_mode(answer="typical"):
        assert program() == expected


def test_transforms_draw_what_eager_draws() -> None:
    def program() -> list[Any]:
        transform = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])
        erase = v2.RandomErasing(p=0.5)
        sizes = [v2.RandomResizedCrop(8).make_params([image]) for image in images()]
        torch.manual_seed(3)
        return [
            transform(torch.zeros(3, 64, 64)).shape,
            erase(torch.zeros(3, 9, 9)).tolist(),
            len(sizes),
        ]

    torch.manual_seed(0)
    expected = program()
    torch.manual_seed(0)
    with fake_mode():
        assert program() == expected
