"""Operators of other libraries with a kernel for the autograd of the CPU, or of CUDA, alone.

Input: the operators that are registered. Output: entries for torchfake's dispatch key. Invariant: a
fake on the CPU has the derivative that a tensor on the CPU has.

The wrapper of a fake is a meta tensor, so C++ takes the kernel for autograd on all devices: that is
another derivative, whose sums have other last bits, or none at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils import _pytree as pytree

from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatch_keys


def register(op: Any) -> None:
    """Register the kernel for `op`, an operator with a kernel for the autograd of one device."""
    dispatch_keys.WRAPPER_KEY.register(op, partial(_differentiated_by_device, op))


def _differentiated_by_device(
    op: Any, redispatch: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run the autograd kernel of the device that the first fake is on."""
    leaves = pytree.tree_leaves([args, kwargs])
    device = next(leaf._fake_meta.device for leaf in leaves if isinstance(leaf, FakeTensor))
    key = dispatch_keys.own_autograd_key(op, device.type)
    return redispatch(*args, **kwargs) if key is None else op._op_dk(key, *args, **kwargs)
