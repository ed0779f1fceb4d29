"""Every model of torchvision: built and run on fakes; deferred, with the values of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision import models

from torchfake import deferred_init, fake_mode, is_fake, materialize_module

DETECTION = tuple(models.list_models(module=models.detection))
SIZES = {"inception_v3": 299, "maxvit_t": 224}
CLASSIFIERS = models.list_models(module=models)
SEGMENTATION = models.list_models(module=models.segmentation)
VIDEO = models.list_models(module=models.video)
DEFERRED = [
    "alexnet", "convnext_tiny", "deeplabv3_mobilenet_v3_large", "densenet121", "efficientnet_b0",
    "googlenet", "inception_v3", "lraspp_mobilenet_v3_large", "maxvit_t", "mnasnet0_5",
    "mobilenet_v2", "mobilenet_v3_small", "mvit_v2_s", "r3d_18", "regnet_y_400mf", "resnet18",
    "shufflenet_v2_x0_5", "squeezenet1_0", "swin3d_t", "swin_t", "swin_v2_t", "vgg11_bn",
    "vit_b_32", "ssdlite320_mobilenet_v3_large", "raft_small",
]  # fmt: skip


def build(name: str) -> Any:
    has_backbone = name in DETECTION or name in SEGMENTATION
    options = {"weights_backbone": None} if has_backbone else {}
    return models.get_model(name, weights=None, **options)


def inputs(name: str) -> list[torch.Tensor]:
    if name in VIDEO:
        return [torch.empty(1, 3, 16, 224, 224)]
    if name.startswith("raft"):
        return [torch.empty(1, 3, 128, 128)] * 2
    size = SIZES.get(name, 224)
    return [torch.empty(1, 3, size, size)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [m for m in models.list_models() if m not in DETECTION])
def test_every_model_runs_forward(name: str) -> None:
    """Detectors are in test_torchvision."""
    if name.startswith("quantized_"):
        name = name.removeprefix("quantized_")
    with fake_mode():
        model = build(name).eval()
        with torch.no_grad():
            result = model(*inputs(name))
    assert all(is_fake(t) for t in [*model.parameters(), *model.buffers()])
    first = next(iter(result.values())) if isinstance(result, dict) else result
    assert is_fake(first[0] if isinstance(first, (list, tuple)) else first)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DEFERRED)
def test_deferred_models_have_the_values_of_eager(name: str) -> None:
    torch.manual_seed(0)
    eager = build(name)
    torch.manual_seed(0)
    model = materialize_module(deferred_init(build, name))
    expected, found = eager.state_dict(), model.state_dict()
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
