"""What torch.distributed cannot know of fakes, corrected in its own classes.

Input: the classes ``DTensor`` and ``DistributedDataParallel``. Output: a DTensor of a fake reports
the device of its shard; a check is called before DDP wraps a module. Invariant: a DTensor of a
plain tensor answers as before, from C++; nothing is replaced in a process that makes no fakes, or
none for torch.distributed.

C++ makes a DTensor, whoever asks for it, and gives it the device that C++ knows of the shard: of a
fake, the carrier device (``meta:1``). DDP passes parameters to C++, which reads their memory. In
neither case is an operator dispatched that could be answered instead, and both happen outside of
all modes; so the classes are changed, once, and stay so. Checked on torch 2.13 and 2.15.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

_builtin = torch._C.TensorBase
_ATTRIBUTES = ("device", "is_meta", "is_cpu", "is_cuda", "is_mps", "is_xpu", "is_mtia")
_METHODS = ("get_device", "type")


def report_devices_of_shards() -> None:
    """Have DTensors of fakes report the devices of their shards, once there is such a class."""
    tensor = sys.modules.get("torch.distributed.tensor")
    dtensor_class = getattr(tensor, "DTensor", None)  # None: it is being imported
    if dtensor_class is None or "device" in dtensor_class.__dict__:
        return
    for name in _METHODS:
        setattr(dtensor_class, name, _reported_method(name))
    for name in reversed(_ATTRIBUTES):  # the device last: it tells that all are there
        setattr(dtensor_class, name, _reported_attribute(name))


def _has_own_device(shard: Any) -> bool:
    """Whether the class of a shard reports another device than C++ knows."""
    return type(shard).device is not _builtin.device


def _reported_attribute(name: str) -> property:
    builtin = getattr(_builtin, name).__get__

    def reported(dtensor: Any) -> Any:
        shard = dtensor._local_tensor
        return getattr(shard, name) if _has_own_device(shard) else builtin(dtensor)

    return property(reported, doc=getattr(_builtin, name).__doc__)


def _reported_method(name: str) -> Any:
    builtin = getattr(_builtin, name)

    @functools.wraps(builtin)
    def reported(dtensor: Any, *args: Any, **kwargs: Any) -> Any:
        shard = dtensor._local_tensor
        if args or kwargs or not _has_own_device(shard):
            return builtin(dtensor, *args, **kwargs)
        return getattr(shard, name)()

    return reported


def check_before_ddp(check: Callable[[torch.nn.Module], None]) -> None:
    """Call `check` with each module that DDP is about to wrap. A second call changes nothing."""
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is None:  # a torch without torch.distributed
        return
    original = parallel.DistributedDataParallel._build_params_for_reducer
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def checked(ddp: Any) -> Any:
        check(ddp.module)
        return original(ddp)

    parallel.DistributedDataParallel._build_params_for_reducer = checked
