"""Pictures and videos of one value, and what models say of them.

Input: a model and sizes. Output: tensors in the dtype of the model's parameters, created in the
active mode; names of arguments. Invariant: nothing is run.
"""

from __future__ import annotations

import inspect

import torch
from torch import nn


def first_argument(model: nn.Module) -> str:
    """The name of the first argument of ``forward``."""
    return next(iter(inspect.signature(model.forward).parameters))


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the first floating point parameter."""
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(floats, torch.get_default_dtype())


def first_channels(model: nn.Module, default: int) -> int:
    """The channels that the first convolution takes; `default`, if it takes no picture."""
    kinds = (nn.Conv2d, nn.Conv3d)
    first = next((m for m in model.modules() if isinstance(m, kinds)), None)
    return default if first is None or first.in_channels > 16 else first.in_channels


def filled(model: nn.Module, *shape: int) -> torch.Tensor:
    """A tensor of one value, in the model's dtype."""
    return torch.full(shape, 0.5, dtype=dtype_of(model))
