"""Modes that torch's tracers leave on are put back."""

from __future__ import annotations

import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake._torch.compiler import tracer_modes


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_torch_modes_kept() -> None:
    """Modes of torch that nobody left are left; so are the flags that Dynamo looks at."""
    flags = [getattr(_python_dispatch, name) for name in tracer_modes._MODE_FLAGS]
    with tracer_modes.torch_modes_kept():
        _Mode().__enter__()
        BaseTorchFunctionMode().__enter__()
        assert torch._C._len_torch_dispatch_stack() == 1
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
    assert [getattr(_python_dispatch, name) for name in tracer_modes._MODE_FLAGS] == flags


def test_in_dispatch_mode() -> None:
    with tracer_modes.in_dispatch_mode(_Mode()):
        assert torch._C._len_torch_dispatch_stack() == 1
    assert torch._C._len_torch_dispatch_stack() == 0
