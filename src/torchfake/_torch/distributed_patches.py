"""What torch.distributed cannot know of fakes: replacements in its own classes.

Input: the classes ``DTensor`` and ``DistributedDataParallel``. Output: replacements, as an owner, a
name and what makes one of the original: a DTensor of a fake reports the device of its shard; a
check is called before DDP wraps a module. Invariant: a DTensor of a plain tensor answers as before,
from C++; nothing is replaced here.

C++ makes a DTensor, whoever asks for it, and gives it the device that C++ knows of the shard: of a
fake, the carrier device (``meta:1``). DDP passes parameters to C++, which reads their memory. In
neither case is an operator dispatched that could be answered instead, and both happen outside of
all modes too; so the classes are changed as long as fakes live. Checked on torch 2.13 and 2.15.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from torchfake._torch.compiler.python_functions import Replacement

_builtin = torch._C.TensorBase
_PLAIN = torch.Tensor()  # made here, where no mode is on
_ATTRIBUTES = ("device", "is_meta", "is_cpu", "is_cuda", "is_mps", "is_xpu", "is_mtia")
_METHODS = ("get_device", "type")


DTENSORS = "torch.distributed.tensor"
PARALLEL = "torch.nn.parallel.distributed"


def devices_of_shards() -> list[Replacement]:
    """DTensors of fakes report the devices of their shards. :data:`DTENSORS` has been imported."""
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
    """`check` is called with each module that DDP is about to wrap."""

    def checked(original: Any) -> Any:
        @functools.wraps(original)
        def replacement(ddp: Any) -> Any:
            check(ddp.module)
            return original(ddp)

        return replacement

    owner = sys.modules[PARALLEL].DistributedDataParallel
    return [(owner, "_build_params_for_reducer", checked)]


def pipeline_start() -> tuple[Any, str] | None:
    """The method, as its class and name, in which the ranks of a pipeline vote on how stages learn
    of shapes; None before torch 2.14, where they vote by messages to one another in all groups.
    """
    from torch.distributed.pipelining import schedules

    owner: Any = schedules._PipelineSchedule
    if hasattr(owner, "_initialize_pipeline_distributed_state"):  # torch 2.15
        return owner, "_initialize_pipeline_distributed_state"
    return (owner, "_warmup_p2p") if torch.__version__.startswith("2.14.") else None


def voting_alone(original: Any) -> Any:
    """That method where other ranks are simulated: torch refuses a vote there that is not for
    shapes which the program names, so each rank follows its own.
    """
    from torch.distributed.pipelining import stage

    mode: Any = getattr(stage, "InferenceMode", None)  # torch 2.11 has none

    @functools.wraps(original)
    def replacement(schedule: Any, stages: Any, has_backward: bool, *args: Any, **kw: Any) -> Any:
        needs_dynamic = vars(mode)["needs_dynamic"]
        votes = [mode.needs_dynamic(each._user_meta, has_backward) for each in stages]
        mode.needs_dynamic = lambda *_: False
        try:
            original(schedule, stages, has_backward, *args, **kw)
        finally:
            mode.needs_dynamic = needs_dynamic
        for each in stages:
            each._inference_mode = mode.DYNAMIC if any(votes) else mode.STATIC

    return replacement


def pipeline_outputs() -> tuple[Any, str] | None:
    """The method, as its class and name, that says whether a stage may let go of an output that it
    has sent; None before torch 2.15, where it keeps them.
    """
    from torch.distributed.pipelining import stage

    name = "_output_slot_is_releasable"
    owner: Any = stage._PipelineStageBase
    return (owner, name) if hasattr(owner, name) else None


def taking_fakes_for_plain(original: Any) -> Any:
    """That method, which asks for plain tensors by their class: a fake stands for one."""

    @functools.wraps(original)
    def replacement(stage: Any, output: Any) -> Any:
        is_subclass = isinstance(output, torch.Tensor) and _has_own_device(output)
        return original(stage, _PLAIN if is_subclass else output)

    return replacement
