"""What an input of a module may look like, for the advice to give one.

Input: a module. Output: text for ``--input``, or a shape. Invariant: a guess by the first layer
that takes an input; the module is not run.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torchfake.inspect.records.tensor_specs import dtype_name

_FORMS = "NAME=DTYPE[SIZES], of one value as int64[8]=64"


def example_shape(module: nn.Module) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of an input for a module's first layer; "" for floating point.

    >>> example_shape(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()))
    ('', (2, 3, 224, 224))
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            return "int64", (2, 64)
        if isinstance(layer, nn.Conv1d):
            return "", (2, layer.in_channels, 16_000)
        if isinstance(layer, nn.Conv2d):
            return "", (2, layer.in_channels, 224, 224)
        if isinstance(layer, nn.Conv3d):
            return "", (2, layer.in_channels, 16, 112, 112)
        if isinstance(layer, nn.RNNBase):
            sizes = (2, 64) if layer.batch_first else (64, 2)
            return "", (*sizes, layer.input_size)
        if isinstance(layer, (nn.MultiheadAttention, nn.TransformerEncoderLayer)):
            attention: Any = getattr(layer, "self_attn", layer)
            return "", (2, 64, attention.embed_dim)
        if isinstance(layer, nn.Linear):
            return "", (2, layer.in_features)
    return "", (2, 64)


def example_call(module: nn.Module) -> str:
    """``torch.empty(2, 3, 224, 224)``, the call that makes such an input."""
    dtype, shape = example_shape(module)
    sizes = ", ".join(map(str, shape))
    return f"torch.zeros({sizes}, dtype=torch.{dtype})" if dtype else f"torch.empty({sizes})"


def example_text(module: nn.Module) -> str:
    """``--input 2,3,224,224``, or one option for each argument that ``forward`` needs."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty and "VAR" not in p.kind.name]
    dtype, shape = example_shape(module)
    if len(names) < 2:
        return f"--input {_written(dtype, shape)}"
    return " ".join(f"--input {name}={_written(dtype or 'float32', shape)}" for name in names)


def inputs_advice(module: nn.Module) -> str:
    """Advice for a module for which no inputs can be generated."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty and "VAR" not in p.kind.name]
    listed = f" ({', '.join(names)})" if names else ""
    return (
        "inputs can be generated for models of transformers, timm, torchvision and diffusers; for "
        f"{type(module).__name__} give one for each argument of its forward{listed}, such as "
        f"{example_text(module)} (in general {_FORMS})"
    )


def inputs_needed(module: nn.Module) -> str:
    """Advice for a module that was run without inputs."""
    dtype, shape = example_shape(module)
    if dtype:
        return f"give its inputs after the module: {example_call(module)}"
    return f"give its inputs after the module, or input_size={shape}"


def as_options(inputs: Mapping[str, Any]) -> str:
    """Inputs that were made, as options of the command line; those that are no tensors are left
    out.
    """
    made = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    return " ".join(
        f"--input {name}={_written(dtype_name(value.dtype), tuple(value.shape))}"
        for name, value in made.items()
    )


def _written(dtype: str, shape: tuple[int, ...]) -> str:
    sizes = ",".join(map(str, shape))
    return f"{dtype}[{sizes}]" if dtype else sizes
