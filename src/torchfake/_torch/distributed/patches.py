"""Replacements in classes of torch.distributed, where fakes are not dispatched.

Input: the classes ``DTensor`` and ``DistributedDataParallel``. Output: replacements, as an owner, a
name and a function of the original: a DTensor of a fake reports the device of its shard; a check is
called before DDP wraps a module. Invariant: a DTensor of a plain tensor answers as before, from
C++; nothing is replaced here.

C++ makes each DTensor, with the device that C++ knows of the shard: for a fake, the carrier device
(``meta:1``). DDP passes parameters to C++, which reads their memory. In neither case is an operator
dispatched that could be answered instead, and both happen outside of all modes too; so the classes
are changed as long as fakes live. Checked on torch 2.13 and 2.15.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from torchfake._torch.compiler.python_functions import Replacement

_builtin = torch._C.TensorBase
_ATTRIBUTES = ("device", "is_meta", "is_cpu", "is_cuda", "is_mps", "is_xpu", "is_mtia")
_METHODS = ("get_device", "type")


DTENSORS = "torch.distributed.tensor"
PARALLEL = "torch.nn.parallel.distributed"


def devices_of_shards() -> list[Replacement]:
    """Have DTensors of fakes report their shards' devices. :data:`DTENSORS` has been imported."""
    cls = sys.modules[DTENSORS].DTensor
    methods = [(cls, name, functools.partial(_reported_method, name)) for name in _METHODS]
    attributes = [(cls, name, functools.partial(_reported_attribute, name)) for name in _ATTRIBUTES]
    return [*methods, *attributes]


def _has_own_device(shard: Any) -> bool:
    """Whether the class of a shard reports another device than C++ knows."""
    return type(shard).device is not _builtin.device


def _reported_attribute(name: str, _: Any) -> property:
    builtin = getattr(_builtin, name).__get__

    def reported(dtensor: Any) -> Any:
        shard = dtensor._local_tensor
        return getattr(shard, name) if _has_own_device(shard) else builtin(dtensor)

    return property(reported, doc=getattr(_builtin, name).__doc__)


def _reported_method(name: str, _: Any) -> Any:
    builtin = getattr(_builtin, name)

    @functools.wraps(builtin)
    def reported(dtensor: Any, *args: Any, **kwargs: Any) -> Any:
        shard = dtensor._local_tensor
        if args or kwargs or not _has_own_device(shard):
            return builtin(dtensor, *args, **kwargs)
        return getattr(shard, name)()

    return reported


def check_before_ddp(check: Callable[[torch.nn.Module], None]) -> list[Replacement]:
    """Call `check` with each module that DDP is about to wrap."""

    def checked(original: Any) -> Any:
        @functools.wraps(original)
        def replacement(ddp: Any) -> Any:
            check(ddp.module)
            return original(ddp)

        return replacement

    owner = sys.modules[PARALLEL].DistributedDataParallel
    return [(owner, "_build_params_for_reducer", checked)]
