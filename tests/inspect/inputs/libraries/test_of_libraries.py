"""Inputs of models of other libraries, whose classes stand-ins imitate; tests/ecosystem has theirs."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import estimate, example_inputs, fake_mode, fit, is_fake
from torchfake.errors import InputsError
from torchfake.inspect.inputs.libraries.of_libraries import library_of


def of(module: str, base: type[nn.Module]) -> Any:
    """A class as if it were defined in a module of a library."""
    return type(base.__name__, (base,), {"__module__": module})


class Net(nn.Module):
    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3)
        self.default_cfg = {"input_size": (3, 48, 40)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stem(x).mean((2, 3))


def shapes(inputs: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in inputs.items()}


def test_pictures_of_timm() -> None:
    """Of the default config's size, and of the channels and patches that the model was built for."""
    with fake_mode():
        model = of("timm.models.vgg", Net)()
        gray = of("timm.models.vgg", Net)(1)
        fixed = of("timm.models.vit", Net)()
        fixed.patch_embed = SimpleNamespace(img_size=(32, 36))
    inputs = example_inputs(model, batch=2)
    assert shapes(inputs) == {"x": (2, 3, 48, 40)}
    assert is_fake(inputs["x"])
    assert (inputs.batch, inputs.seq) == (2, None)
    assert shapes(inputs.resized(batch=5)) == {"x": (5, 3, 48, 40)}
    assert shapes(example_inputs(gray)) == {"x": (1, 1, 48, 40)}
    assert shapes(example_inputs(fixed)) == {"x": (1, 3, 32, 36)}
    assert example_inputs(model.to(torch.bfloat16))["x"].dtype == torch.bfloat16
    with pytest.raises(InputsError, match="Net takes pictures, which have no seq"):
        example_inputs(model, seq=8)
    (found,) = fit(model, "t4-16gb", batch=2)
    assert found.largest is not None
    assert found.largest > 1000


def test_layers_and_other_classes_are_not_models() -> None:
    layer = of("timm.layers.norm", nn.Identity)()
    assert library_of(layer) is None
    assert library_of(of("torchvision.ops.misc", nn.Identity)()) is None
    assert library_of(of("diffusers.models.attention", nn.Identity)()) is None
    assert library_of("timm") is None
    with pytest.raises(
        InputsError, match=r"of transformers, timm, torchvision and diffusers, not f"
    ):
        example_inputs(layer)


class Weights:
    """One set of published weights."""

    def __init__(self, number: int, **sizes: list[int]) -> None:
        self.meta = {"num_params": number}
        self.sizes = sizes

    def transforms(self) -> Any:
        return SimpleNamespace(**self.sizes)


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    def small() -> None: ...
    def large() -> None: ...

    for builder in (small, large):
        builder.__module__ = "torchvision.models.net"
    builders: dict[str, Any] = {"small": small, "large": large}
    weights = {
        "small": [Weights(200, crop_size=[64], resize_size=[80])],
        "large": [Weights(10_000, crop_size=[96, 80])],
    }
    models = SimpleNamespace(
        list_models=lambda: [*builders],
        get_model_builder=builders.__getitem__,
        get_model_weights=weights.__getitem__,
    )
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


@pytest.mark.usefixtures("torchvision")
def test_transforms_of_torchvisions_weights() -> None:
    """Of the weights with nearly as many parameters as the model."""
    with fake_mode():
        model = of("torchvision.models.net", Net)()
        wide = of("torchvision.models.net", Net)()
        wide.head = nn.Linear(8, 1000)
        other = of("torchvision.models.other", Net)()
        vit = of("torchvision.models.net", Net)()
        vit.image_size = 32
    assert shapes(example_inputs(model)) == {"x": (1, 3, 64, 64)}
    assert shapes(example_inputs(wide)) == {"x": (1, 3, 96, 80)}
    assert shapes(example_inputs(other)) == {"x": (1, 3, 224, 224)}
    assert shapes(example_inputs(vit)) == {"x": (1, 3, 32, 32)}


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
        self.roi_heads = SimpleNamespace(mask_predictor=1, keypoint_predictor=None)

    def forward(self, images: list[torch.Tensor], targets: Any = None) -> Any:
        found = [self.layer(image).mean() for image in images]
        return {"one": found[0], "two": found[-1] * 2} if self.training else found


def test_detectors_take_lists_of_pictures_and_train_on_all_losses() -> None:
    with fake_mode():
        model = of("torchvision.models.detection.net", Detector)()
    inputs = example_inputs(model, batch=2, labels=True)
    assert [tuple(image.shape) for image in inputs["images"]] == [(3, 480, 640)] * 2
    target = inputs["targets"][1]
    assert {key: tuple(value.shape) for key, value in target.items()} == {
        "boxes": (8, 4), "labels": (8,), "masks": (8, 480, 640),
    }  # fmt: skip
    assert estimate(model, inputs, optimizer="sgd").peak_bytes > 0
    assert "targets" not in example_inputs(model, batch=2)


def test_pairs_and_videos() -> None:
    with fake_mode():
        flow = of("torchvision.models.optical_flow.raft", Net)()
        video = of("torchvision.models.video.net", Net)()
        video.stem = nn.Conv3d(3, 8, 3)
    assert shapes(example_inputs(flow)) == dict.fromkeys(("image1", "image2"), (1, 3, 520, 960))
    assert shapes(example_inputs(video)) == {"x": (1, 3, 16, 224, 224)}
