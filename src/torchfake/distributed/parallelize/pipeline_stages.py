"""Pipeline schedules by name, and the assignment of their stages to ranks.

Input: a name, numbers of ranks and micro-batches. Output: a :class:`PipelineSchedule`. Invariant:
the installed torch has the schedule's class.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from torchfake._core.arguments import is_whole_number
from torchfake.errors import InputsError, did_you_mean

_ONE, _LOOP, _V = "one", "loop", "v"


class PipelineSchedule(NamedTuple):
    """One of torch's pipeline schedules."""

    class_name: str
    shape: str  # the stages of a rank: one; two, a round apart; or two, as a V
    least: int = 1  # the least number of micro-batches per rank

    @property
    def stages_per_rank(self) -> int:
        return 1 if self.shape == _ONE else 2

    def indices(self, size: int) -> str:
        """The Python expression of the indices of a rank's stages."""
        other = {_ONE: "", _LOOP: f" rank + {size}", _V: f" {2 * size - 1} - rank"}[self.shape]
        return f"(rank,{other})"


SCHEDULES = {
    "1f1b": PipelineSchedule("Schedule1F1B", _ONE),
    "gpipe": PipelineSchedule("ScheduleGPipe", _ONE, 0),
    "interleaved": PipelineSchedule("ScheduleInterleaved1F1B", _LOOP),
    "breadth-first": PipelineSchedule("ScheduleLoopedBFS", _LOOP, 0),
    "zero-bubble": PipelineSchedule("ScheduleInterleavedZeroBubble", _LOOP),
    "zbv": PipelineSchedule("ScheduleZBVZeroBubble", _V),
    "dualpipev": PipelineSchedule("ScheduleDualPipeV", _V, 2),
}
"""The schedules by the name of the option; names of torch's classes are accepted too."""

DEFAULT = "1f1b"


def schedule_named(name: str) -> PipelineSchedule:
    """The schedule of that name.

    Raises:
        InputsError: if the name is unknown, or this torch lacks the schedule.
    """
    from torch.distributed.pipelining import schedules  # imports torch.compile, for a second

    key = str(name).lower().replace("_", "-")
    by_class = {found.class_name.lower(): found for found in SCHEDULES.values()}
    by_class |= {name.removeprefix("schedule"): found for name, found in by_class.items()}
    found = SCHEDULES.get(key) or by_class.get(key)
    if found is None:
        hint = did_you_mean(key, SCHEDULES) or f": give one of {', '.join(SCHEDULES)}"
        raise InputsError(f"schedule is {name!r}{hint}")
    if not hasattr(schedules, found.class_name):
        raise InputsError(
            f"torch {torch.__version__} has no {found.class_name}: give another schedule, such as "
            f"{DEFAULT}"
        )
    return found


def check_micro_batches(name: str, number: int, size: int) -> None:
    """Check that a schedule has enough micro-batches, and whole rounds of them if it needs that.

    Raises:
        InputsError: if not; the message names a valid number.
    """
    found = schedule_named(name)
    if not is_whole_number(number, 1):
        raise InputsError(f"microbatches={number!r}: give a whole number of 1 or more")
    least = max(found.least * size, 1)
    if number < least:
        raise InputsError(
            f"{found.class_name} on {size} ranks takes {least} micro-batches or more, not "
            f"{number}: give microbatches={least} (--accumulate {least}), or the schedule gpipe"
        )
    rounds = max(number // size, 1)
    is_looped = found.class_name in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble")
    if is_looped and number % rounds:
        near = number // size * size
        raise InputsError(
            f"{found.class_name} on {size} ranks takes micro-batches in whole rounds, not "
            f"{number}: give {near} or {near + size}"
        )
