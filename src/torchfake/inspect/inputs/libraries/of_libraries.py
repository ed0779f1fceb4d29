"""The library that a model is of, and the arguments that its models take.

Input: a model. Output: the name of its library, or its arguments. Invariant: a model is of the
library in which its class, or a base class that is no container, is defined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from torchfake.inspect.inputs.libraries.diffusion import diffusion_arguments
from torchfake.inspect.inputs.libraries.diffusion_sizes import is_denoiser
from torchfake.inspect.inputs.libraries.timm_models import timm_arguments
from torchfake.inspect.inputs.libraries.torchvision_models import torchvision_arguments

Made = tuple[dict[str, Any], int | None]
"""The arguments of ``forward``, and the number of text tokens; None if there is no text."""

_MAKERS: dict[str, Callable[..., Made]] = {
    "timm": timm_arguments,
    "torchvision": torchvision_arguments,
    "diffusers": diffusion_arguments,
}


def library_of(model: object) -> str | None:
    """The library that a model is of, if inputs of its models can be made; otherwise None."""
    if not isinstance(model, nn.Module):
        return None
    for base in type(model).__mro__:
        package = base.__module__.split(".")[0]
        if package == "timm" and not hasattr(model, "default_cfg"):
            return None  # a layer of timm
        if package == "diffusers" and not hasattr(model, "config"):
            return None
        if package == "torchvision" and ".models." not in base.__module__:
            return None
        if package in _MAKERS:
            return package
    return None


def arguments_of(model: nn.Module, library: str, batch: int, seq: int | None) -> Made:
    """The arguments of a library's model, created in the active mode.

    Raises:
        InputsError: if the model needs an argument that cannot be made.
    """
    return _MAKERS[library](model, batch=batch, seq=seq)


def denoises(model: object) -> bool:
    """Whether a model of diffusers is run once in each denoising step of a pipeline."""
    return library_of(model) == "diffusers" and is_denoiser(model)
