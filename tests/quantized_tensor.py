"""A quantized weight as libraries write it: a wrapper subclass of integers and scales, and a
parameter that holds its scales in an attribute.

Input: a floating point weight. Output: a wrapper, or a parameter, of its integers. Invariant: its
values are those of torch's own operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Quantized(torch.Tensor):
    """``codes * scale``, of the dtype that it had before."""

    codes: torch.Tensor
    scale: torch.Tensor

    def __new__(cls, codes: Any, scale: Any, dtype: torch.dtype) -> Quantized:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, codes.shape, dtype=dtype, device=codes.device
        )
        made.codes, made.scale = codes, scale
        return made  # type: ignore[no-any-return]

    def __init__(self, *args: Any) -> None: ...

    @classmethod
    def of(cls, weight: torch.Tensor) -> Quantized:
        """Quantize each row to 8 bits."""
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale, weight.dtype)

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], self.dtype

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, dtype: Any, size: Any, stride: Any) -> Quantized:
        return cls(inner["codes"], inner["scale"], dtype)

    def dequantized(self) -> torch.Tensor:
        codes = self.codes.dequantized() if isinstance(self.codes, Quantized) else self.codes
        return codes.to(self.dtype) * self.scale.to(self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].codes.detach(), args[0].scale.detach(), args[0].dtype)
        args = [arg.dequantized() if isinstance(arg, Quantized) else arg for arg in args]
        return func(*args, **(kwargs or {}))


class Packed(nn.Parameter):
    """A parameter of codes whose scale is in an object of its own, beside the module it is in."""

    def __new__(cls, weight: torch.Tensor) -> Packed:
        made: Any = torch.Tensor._make_subclass(cls, Quantized.of(weight).codes, False)
        made.state = State(Quantized.of(weight).scale)
        return made  # type: ignore[no-any-return]


class State:
    """What a parameter of codes has in addition."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scales = [scale]


def quantized_net(dtype: torch.dtype = torch.float32, nested: bool = False) -> nn.Sequential:
    """Two layers with quantized weights; `nested`: the scales are quantized in their turn."""
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)).to(dtype)
    for layer in (net[0], net[2]):
        weight: Any = Quantized.of(layer.weight.detach())  # type: ignore[arg-type]
        if nested:
            weight = Quantized(Quantized.of(weight.dequantized()), weight.scale, dtype)
        layer.weight = nn.Parameter(weight, requires_grad=False)
    return net
