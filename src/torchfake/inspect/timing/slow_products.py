"""The time that matrix products take because their dtype is not one of the GPU's tensor cores.

Input: the commands of a step, as they ran on a GPU. Output: a :class:`SlowProducts`, or None.
Invariant: only the operators that ran are counted; nothing is run again.

PyTorch computes matrix products of float32 without TF32 by default, and GPUs older than Ampere have
no tensor cores for bfloat16. Convolutions are not counted: from Ampere on, those of float32 use
TF32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.arithmetic.kinds import MATMUL
from torchfake.inspect.records.tensor_specs import dtype_name
from torchfake.inspect.timing.commands import Command
from torchfake.inspect.timing.efficiency import runs_in_tf32, seconds_of, shares_of
from torchfake.inspect.timing.hardware import hardware_of
from torchfake.inspect.timing.schedule import Schedule

_CAST = (torch.float32, torch.bfloat16)
"""The dtypes that autocast casts to another, and that may have no tensor cores."""


class SlowProducts(NamedTuple):
    """Matrix products without tensor cores, and a dtype in which tensor cores compute them."""

    slow: tuple[torch.dtype, ...]  # float32, or on older GPUs also bfloat16
    fast: torch.dtype  # bfloat16, or on older GPUs float16
    seconds: float  # of the kernels in slow dtypes
    fast_seconds: float  # of the same kernels in `fast`, as autocast runs them

    def to_dict(self, times: float = 1.0) -> dict[str, Any]:
        """What is saved as a dict for JSON, of `times` what was run."""
        return {
            "slow": [dtype_name(dtype) for dtype in self.slow],
            "fast": dtype_name(self.fast),
            "seconds": self.seconds * times,
            "fast_seconds": self.fast_seconds * times,
        }


_WORTH = 0.25
"""The share of a step from which on a faster dtype is said to save time."""


def worthwhile(schedule: Schedule, gpu: CudaProfile) -> SlowProducts | None:
    """The matrix products of a step without tensor cores, if another dtype saves a good part of its
    time.
    """
    found = slow_products(schedule.commands, gpu)
    if found is None:
        return None
    least = max(schedule.host_seconds, schedule.seconds - found.seconds + found.fast_seconds)
    return found if schedule.seconds - least >= _WORTH * schedule.seconds else None


def schedule_to_dict(
    schedule: Schedule | None, gpu: CudaProfile | None, times: float = 1.0
) -> dict[str, Any] | None:
    """A schedule, and what another dtype would save, as a dict for JSON.

    Args:
        schedule: the schedule of what was run; None where none is known.
        gpu: the GPU that it ran on.
        times: how many times a step takes what was run.
    """
    if schedule is None or gpu is None:
        return None
    found = worthwhile(schedule, gpu)
    faster = None if found is None else found.to_dict(times)
    return {**schedule.to_dict(), **({} if faster is None else {"faster": faster})}


def slow_products(commands: Iterable[Command], gpu: CudaProfile) -> SlowProducts | None:
    """The matrix products of a step without tensor cores; None if there are none, or no figures of
    the GPU.

    Args:
        commands: the commands of the step.
        gpu: the GPU on which they run.
    """
    hardware = hardware_of(gpu)
    if hardware is None:
        return None
    fast = max((torch.bfloat16, torch.float16), key=hardware.flops.__getitem__)
    slow = {t for t in _CAST if hardware.flops[t] < hardware.flops[fast]}
    works = [command.work for command in commands if command.work is not None]
    works = [work for work in works if work.kind == MATMUL and work.dtype in slow]
    works = [work for work in works if not runs_in_tf32(work, gpu)]
    if not works:
        return None
    shares = shares_of(gpu)
    before, after = (
        sum(seconds_of(work, gpu, hardware, shares) for work in each)
        for each in (works, [work._replace(dtype=fast) for work in works])
    )
    found = {work.dtype for work in works}
    return SlowProducts(tuple(t for t in _CAST if t in found), fast, before, after)
