"""Counts the FLOPs of a function on a fake GPU, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake import fake_mode
from torchfake.inspect.arithmetic.formulas import flops_of
from torchfake.observe import Observer, observing

GPU = "h100-80gb"


class Counter(Observer):
    """The FLOPs of each operator that has a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.by_operator: dict[str, int] = {}

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        flops = flops_of(func, args, kwargs, result)
        if flops is not None:
            name = str(getattr(func, "_overloadpacket", func))
            self.by_operator[name] = self.by_operator.get(name, 0) + flops.total


def counted(function: Callable[..., Any], *shapes: Any, dtype: Any = torch.float32) -> dict:
    """The FLOPs of a function of tensors of these shapes on fake CUDA, by operator; of its backward
    pass too, if it returns a tensor that requires a gradient.
    """
    with fake_mode(fake_cuda=GPU):
        is_float = dtype.is_floating_point
        given = [
            torch.empty(shape, dtype=dtype, device="cuda").requires_grad_(is_float)
            for shape in shapes
        ]
        with observing(Counter()) as counter:
            result = function(*given)
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.sum().backward()
    return counter.by_operator
