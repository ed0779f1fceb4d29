"""How long a step of several micro-batches takes, of which the first ones were run.

Input: the schedule of those that were run. Output: a :class:`StepTime`. Invariant: a micro-batch
that was not run takes as long as the last one that was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchfake.inspect.timing.schedule import Schedule


class StepTime(NamedTuple):
    """The time of a step of the slowest rank."""

    seconds: float
    exposed_seconds: float  # communication, and nothing is computed
    idle_seconds: float  # nothing runs: the GPU waits for the host
    model_flops: int  # of a rank, without recomputation
    bubble_seconds: float = 0.0  # nothing is computed: it waits for other stages of a pipeline


def step_time(schedule: Schedule, model_flops: int, num_run: int, num_all: int) -> StepTime:
    """The time of `num_all` micro-batches and the optimizer's step, of which `num_run` were run,
    with so many FLOPs without recomputation.
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


def _of_last_micro_batch(schedule: Schedule) -> float:
    """From its first command to the first of the optimizer, or the end."""
    phases = [command.place.phase for command in schedule.commands]
    forward = [i for i, phase in enumerate(phases) if phase == "forward"]
    begins = [i for i in forward if i == 0 or phases[i - 1] != "forward"]
    updates = [i for i, phase in enumerate(phases) if phase == "optimizer"]
    end = float(np.min(schedule.begins[updates])) if updates else schedule.seconds
    return end - float(schedule.begins[begins[-1]]) if begins else 0.0
