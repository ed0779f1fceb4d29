"""The time of a step with several micro-batches, of which only the first ones were run.

Input: the schedule of the run. Output: a :class:`StepTime`. Invariant: each micro-batch that was
not run is counted with the time of the last one that was run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchfake.inspect.arithmetic.kinds import is_attention
from torchfake.inspect.timing.schedule import Schedule


class StepTime(NamedTuple):
    """The time of a step of the slowest rank."""

    seconds: float
    exposed_seconds: float  # communication while nothing is computed
    idle_seconds: float  # nothing runs, since the GPU waits for the host
    model_flops: int  # of a rank, without recomputation
    bubble_seconds: float = 0.0  # nothing is computed, since the stage waits for other stages


def step_time(schedule: Schedule, model_flops: int, num_run: int, num_all: int) -> StepTime:
    """The time of a step with `num_all` micro-batches and the optimizer, from the schedule of a run
    with `num_run` micro-batches.
    """
    times = num_all / num_run
    more = (num_all - num_run) * _of_last_micro_batch(schedule) if num_all > num_run else 0.0
    return StepTime(
        schedule.seconds + more,
        schedule.exposed_seconds * times,
        schedule.idle_seconds * times,
        round(model_flops * times),
        schedule.bubble_seconds * times,
    )


def skipped_flops(schedule: Schedule) -> int:
    """FLOPs that torch's formula counts for causal attention on one GPU, and that a ring of ranks
    leaves out of its kernels. The formula counts all scores, of which causal attention computes
    half; to the keys of other ranks a ring has kernels without a mask, of that half alone.
    """
    kernels = [
        (command.place.module, command.work)
        for command in schedule.commands
        if command.work is not None and not command.place.is_recomputation
    ]
    causal = {module for module, work in kernels if work.executed < 1}
    return sum(
        work.flops - work.repeated_flops
        for module, work in kernels
        if module in causal and work.executed == 1 and is_attention(work.kind)
    )


def _of_last_micro_batch(schedule: Schedule) -> float:
    """The time from the last micro-batch's first command to the optimizer's first, or the end."""
    phases = [command.place.phase for command in schedule.commands]
    forward = [i for i, phase in enumerate(phases) if phase == "forward"]
    begins = [i for i in forward if i == 0 or phases[i - 1] != "forward"]
    updates = [i for i, phase in enumerate(phases) if phase == "optimizer"]
    end = float(np.min(schedule.begins[updates])) if updates else schedule.seconds
    return end - float(schedule.begins[begins[-1]]) if begins else 0.0
