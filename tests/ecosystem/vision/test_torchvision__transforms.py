"""tv_tensors in a mode, and torchvision.transforms.v2 on them: classes, metadata and values."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from torchfake import deferred_mode, fake_mode, is_fake, materialize_tensor

HEIGHT, WIDTH = 24, 32
IMAGES_ONLY = ("FiveCrop", "TenCrop", "AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide")


def sample() -> dict[str, torch.Tensor]:
    size = (HEIGHT, WIDTH)
    boxes: Any = [[1.0, 2, 10, 12], [3, 4, 20, 20]]
    bytes_ = torch.uint8
    return {
        "image": tv_tensors.Image(torch.randint(0, 256, (3, *size), dtype=bytes_)),
        "float": tv_tensors.Image(torch.rand(3, *size)),
        "video": tv_tensors.Video(torch.randint(0, 256, (2, 3, *size), dtype=bytes_)),
        "mask": tv_tensors.Mask(torch.randint(0, 2, (2, *size), dtype=bytes_)),
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size),
        "points": tv_tensors.KeyPoints([[1.0, 2.0], [3.0, 4.0]], canvas_size=size),
        "tensor": torch.zeros(3, *size),
        "labels": torch.tensor([1, 2]),
    }


def returned_as_subclasses(data: Any) -> Any:
    with tv_tensors.set_return_type("TVTensor"):
        return [data["image"] + 1, data["boxes"] * 2, data["boxes"].chunk(2)]


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "set_return_type": returned_as_subclasses,
    "arithmetic": lambda d: [[v + 1, v[0], v.sum(), v.unbind(0)] for v in d.values()],
    "kept": lambda d: [[v.clone(), v.to(torch.float64), v.detach()] for v in d.values()],
    "wrap": lambda d: tv_tensors.wrap(torch.zeros(2, 4), like=d["boxes"]),
    "collate": lambda d: torch.utils.data.default_collate([{"image": d["image"]}] * 2),
}
PADS = v2.Pad(1), v2.CenterCrop(9)
NOISE = [v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()]
BY_CLASS: Any = {tv_tensors.Image: torch.float32, tv_tensors.Video: torch.float32, "others": None}
TRANSFORMS: dict[str, Callable[[], Any]] = {
    "ToDtype by class": lambda: v2.ToDtype(BY_CLASS, scale=True),
    "Normalize": lambda: v2.Compose([v2.ToDtype(BY_CLASS), v2.Normalize([0.5] * 3, [0.2] * 3)]),
    "GaussianNoise": lambda: v2.Compose(NOISE),
    "ToDtype": lambda: v2.ToDtype(torch.float32),
    "Resize": lambda: v2.Resize((12, 16)),
    "Resize of one side": lambda: v2.Resize(10),
    "RandomResizedCrop": lambda: v2.RandomResizedCrop(8),
    "Grayscale": v2.Grayscale,
    "ColorJitter": lambda: v2.ColorJitter(0.3, 0.3, 0.3, 0.1),
    "RandomAffine": lambda: v2.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5),
    "RandomRotation": lambda: v2.RandomRotation(30),
    "RandomChoice": lambda: v2.RandomChoice(PADS),
    "RandomApply": lambda: v2.RandomApply(PADS),
    "RandomOrder": lambda: v2.RandomOrder(PADS),
    "SanitizeBoundingBoxes": lambda: v2.SanitizeBoundingBoxes(labels_getter=lambda d: d["labels"]),
    "ConvertBoundingBoxFormat": lambda: v2.ConvertBoundingBoxFormat("CXCYWH"),
    "RandomShortestSize": lambda: v2.RandomShortestSize(10),
    "ScaleJitter": lambda: v2.ScaleJitter((16, 16)),
    "GaussianBlur": lambda: v2.GaussianBlur(3),
    "UniformTemporalSubsample": lambda: v2.UniformTemporalSubsample(1),
    "SetClampingMode": lambda: v2.SetClampingMode("hard"),
    **{
        n: lambda n=n: getattr(v2, n)(8)  # type: ignore[misc]
        for n in ("CenterCrop", "RandomCrop", "FiveCrop", "TenCrop")
    },
    **{
        n: lambda n=n: getattr(v2, n)(p=1.0)  # type: ignore[misc]
        for n in (
            "RandomHorizontalFlip", "RandomVerticalFlip", "RandomPerspective", "RandomZoomOut",
            "RandomGrayscale", "RandomInvert", "RandomAutocontrast", "RandomEqualize",
            "RandomPhotometricDistort", "RandomErasing",
        )
    },
    **{
        n: getattr(v2, n)
        for n in (
            "Identity", "RGB", "ElasticTransform", "RandomChannelPermutation", "RandomIoUCrop",
            "ToImage", "ToPureTensor", "ClampBoundingBoxes", "ClampKeyPoints", "AugMix",
            "AutoAugment", "RandAugment", "TrivialAugmentWide",
        )
    },
    **{name: lambda use=use: use for name, use in OPERATIONS.items()},  # type: ignore[misc]
}  # fmt: skip


def described(value: Any, with_values: bool) -> Any:
    if isinstance(value, dict):
        return {key: described(item, with_values) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value), *(described(item, with_values) for item in value)]
    if not isinstance(value, torch.Tensor):
        return value
    classes = [c.__name__ for c in type(value).__mro__ if c.__module__.startswith("torchvision")]
    classes = [*dict.fromkeys(classes)]  # the class of a fake has the name and module of its own
    plain = value.detach().as_subclass(torch.Tensor)
    found = [classes, plain.shape, plain.stride(), plain.storage_offset(), plain.dtype, vars(value)]
    if with_values:
        found.append((materialize_tensor(plain) if is_fake(plain) else plain).tolist())
    return found


def outcome(name: str, mode: Callable[[], Any], with_values: bool) -> Any:
    random.seed(0)
    torch.manual_seed(0)
    with mode():
        data: Any = sample()
        torch.manual_seed(1)  # what fakes draw for the images is not in the sequence of small draws
        use = TRANSFORMS[name]()
        result = use({"image": data["image"]} if name in IMAGES_ONLY else data)
    return described(result, with_values)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_every_kind_of_tensor(name: str, mode: Any) -> None:
    with_values = mode is deferred_mode
    wanted = outcome(name, nullcontext, with_values)
    assert outcome(name, mode, with_values) == wanted
