"""Inputs of torchvision's models: pictures, pairs, videos, as the transforms of weights make them.

Input: a model of torchvision. Output: the arguments of its ``forward``. Invariant: the size is what
the model fixes, otherwise that of the transforms of published weights: of those for models of the
same file, the weights with the number of parameters that is nearest to the model's.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from torchfake.errors import InputsError
from torchfake.inspect.inputs.libraries.pictures import filled, first_argument, first_channels

_COCO = (480, 640)  # height and width of most pictures of COCO; detectors resize their pictures
_FLOW = (520, 960)  # of the frames in torchvision's example of RAFT
_NUM_FRAMES = 16
_NUM_BOXES = 8  # in a picture; COCO has 7.3 on average


def torchvision_arguments(
    model: nn.Module, *, batch: int, seq: int | None
) -> tuple[dict[str, Any], None]:
    """The arguments of a model of torchvision, and None: there is no text."""
    if seq is not None:
        raise InputsError(f"{type(model).__name__} takes pictures, which have no seq: leave it out")
    kind, name = type(model).__module__, first_argument(model)
    if ".detection." in kind:
        return {name: [filled(model, 3, *_COCO) for _ in range(batch)]}, None
    if ".optical_flow." in kind:
        return {key: filled(model, batch, 3, *_FLOW) for key in ("image1", "image2")}, None
    size = _size_of(model)
    channels = first_channels(model, 3)
    if ".video." in kind:
        frames = _fixed(model, "pos_encoding", "temporal_size", 2) or _NUM_FRAMES
        return {name: filled(model, batch, channels, frames, *size)}, None
    return {name: filled(model, batch, channels, *size)}, None


def detection_targets(model: nn.Module, batch: int) -> dict[str, Any]:
    """The argument ``targets`` of a detector: boxes, and what else its heads are trained on."""
    heads: Any = getattr(model, "roi_heads", None)
    boxes = torch.tensor([[40.0, 40.0, 200.0, 300.0]]).repeat(_NUM_BOXES, 1)
    target = {"boxes": boxes, "labels": torch.ones(_NUM_BOXES, dtype=torch.int64)}
    if getattr(heads, "mask_predictor", None) is not None:
        target["masks"] = torch.zeros((_NUM_BOXES, *_COCO), dtype=torch.uint8)
    if getattr(heads, "keypoint_predictor", None) is not None:
        target["keypoints"] = torch.full((_NUM_BOXES, 17, 3), 60.0)
    return {"targets": [{k: v.clone() for k, v in target.items()} for _ in range(batch)]}


def is_detector(model: object) -> bool:
    """Whether a model takes a list of pictures, and is trained on boxes."""
    return type(model).__module__.startswith("torchvision.models.detection.")


def _size_of(model: nn.Module) -> tuple[int, int]:
    side = getattr(model, "image_size", None)  # of a vision transformer
    if isinstance(side, int):
        return side, side
    spatial = getattr(getattr(model, "pos_encoding", None), "spatial_size", None)
    transforms = _transforms(model)
    found = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None)
    if spatial is not None or found is None:
        return (224, 224)
    return (found[0], found[-1])


def _fixed(model: nn.Module, part: str, name: str, times: int) -> int | None:
    value = getattr(getattr(model, part, None), name, None)
    return times * value if isinstance(value, int) else None


def _transforms(model: nn.Module) -> Any:
    """The transforms of the weights that are nearest to the model; None if its file has none."""
    models: Any = sys.modules.get("torchvision.models")
    if models is None:
        return None
    file = type(model).__module__.replace(".quantization.", ".")
    number = sum(p.numel() for p in model.parameters())
    found = []
    for name in models.list_models():
        builder = models.get_model_builder(name)
        if builder.__module__ == type(model).__module__ or builder.__module__ == file:
            weights: Any = models.get_model_weights(name)
            found += [each for each in weights if "num_params" in each.meta]
    if not found and "segmentation" in file:  # a class of torchvision that all of them share
        return models.get_model_weights("fcn_resnet50").DEFAULT.transforms()
    nearest = min(found, key=lambda each: abs(each.meta["num_params"] - number), default=None)
    return None if nearest is None else nearest.transforms()
