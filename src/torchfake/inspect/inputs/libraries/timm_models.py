"""Inputs of timm's models: the pictures that their default config names.

Input: a model that ``timm.create_model`` made. Output: the argument of its ``forward``. Invariant:
the size is that of the model's patches, if it is fixed, otherwise of ``default_cfg``.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from torchfake.errors import InputsError
from torchfake.inspect.inputs.libraries.pictures import filled, first_argument, first_channels


def timm_arguments(model: nn.Module, *, batch: int, seq: int | None) -> tuple[dict[str, Any], None]:
    """The arguments of a model of timm, and None: there is no text."""
    if seq is not None:
        raise InputsError(f"{type(model).__name__} takes pictures, which have no seq: leave it out")
    known: Any = model
    channels, *size = known.default_cfg["input_size"]
    fixed = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if fixed is not None:
        size = [fixed, fixed] if isinstance(fixed, int) else [*fixed]
    picture = filled(model, batch, first_channels(model, channels), *size)
    return {first_argument(model): picture}, None
