"""The time of a step, as lines and as a part of the first line.

Input: an estimate, or the schedule of a step. Output: text; lines, each a name and a text.
Invariant: a time stands beside the error that is known of its kind, and a time that leaves out a
part of the step is named a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.arithmetic.uncounted import untimed_line
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit
from torchfake.inspect.records.units import seconds_text, short_name
from torchfake.inspect.show.rows import Line
from torchfake.inspect.timing.compared import (
    MIXTURES,
    error_in_short,
    error_text,
    kind_of_model,
)
from torchfake.inspect.timing.hardware import why_untimed
from torchfake.inspect.timing.schedule import GenerationTime, Schedule
from torchfake.inspect.timing.slow_products import worthwhile


def time_in_short(found: Estimate) -> str:
    """The time of a step and its error: ``2.2 s a step (median error 4 %)``; "" if not known."""
    if found.gpu is None or found.step.serve is not None:
        return ""
    error = error_in_short(found.gpu, kind_of(found), **compared_as(found.mode, found.schedule))
    if found.generation is not None:
        seconds = seconds_text(found.generation.seconds)
        return f"{seconds} to generate by eager transformers ({error})"
    if found.schedule is None:
        return ""
    each = "step" if found.mode == "training" else "pass"
    return seconds_in_short(found.schedule.seconds, each, error, found.schedule.is_lower_bound)


def seconds_in_short(seconds: float, each: str, error: str, is_lower_bound: bool) -> str:
    """The time of a step, at least so long or with its error."""
    text = f"{seconds_text(seconds)} a {each}"
    return f"at least {text}" if is_lower_bound else f"{text} ({error})"


def room_text(fit: Fit | None) -> str:
    """What follows the time of a step that does not fit: it is that of a GPU with more memory."""
    return ", were there room" * (fit is not None and not fit.fits)


def time_lines(found: Estimate, fit: Fit | None) -> Iterator[Line]:
    """The time of a step on a GPU whose figures are known; that of serving is not estimated."""
    if found.gpu is None:
        return
    compared = compared_as(found.mode, found.schedule)
    error = "  error", error_text(found.gpu, kind_of(found), **compared)
    if why := why_untimed(found.gpu):
        yield "step time", why
    elif found.step.serve is not None:
        yield "step time", "not estimated here: torchfake serve gives the times of a server"
    elif found.generation is not None:
        yield from (("time", _generation_text(found.generation) + room_text(fit)), error)
    elif (schedule := found.schedule) is not None:
        seconds = f"{'at least ' * schedule.is_lower_bound}{seconds_text(schedule.seconds)}"
        yield "step time", f"{seconds} on {found.gpu.name}{room_text(fit)}"
        yield from (untimed_line(schedule.untimed), error)
        yield from _bound_lines(found, schedule)
        yield from faster_lines(schedule, found.gpu)


def untimed_note(fits: Sequence[Fit]) -> str:
    """The note on GPUs with room whose step has no time beside those whose step has one."""
    with_room = [fit for fit in fits if fit.fits]
    untimed = [fit.gpu for fit in with_room if fit.step_seconds is None]
    if len(untimed) in (0, len(with_room)):
        return ""
    return f"No step time on {', '.join(untimed)}, whose FLOP/s and bandwidths are not known here."


def launches_note(fits: Sequence[Fit]) -> str:
    """The note on GPUs of which the host bounds the time, which is then about the same on all."""
    bound = [fit.gpu for fit in fits if fit.is_bound_by_launches and fit.fits]
    if len(bound) < 2:
        return ""
    of = "all of these" if len(bound) == sum(fit.fits for fit in fits) else ", ".join(bound)
    return f"Launches bound the step time on {of}: the host starts kernels, and the GPU waits."


def compared_as(mode: str, schedule: Schedule | None) -> dict[str, bool]:
    """The arguments by which the error of a time is found."""
    is_bound = schedule is not None and schedule.is_bound_by_launches
    return {"is_training": mode == "training", "is_bound_by_launches": is_bound}


def kind_of(found: Estimate) -> str:
    """The kind of model, by its experts and inputs, as docs/time.md gives the error of times."""
    if found.active is not None:
        return MIXTURES
    inputs = found.subject.held_by_inputs
    return kind_of_model(each for each in inputs if not isinstance(each, nn.Parameter))


def _generation_text(found: GenerationTime) -> str:
    total, prompt = seconds_text(found.seconds), seconds_text(found.prompt_seconds)
    if not found.num_passes:
        return f"{total} for the prompt and one token"
    each = f"then {seconds_text(found.seconds_per_token)} a token"
    return f"{total}: {prompt} for the prompt, {each}; torchfake serve tells an engine's"


def _bound_lines(found: Estimate, schedule: Schedule) -> Iterator[Line]:
    """That the host bounds the time, and which batch would take as long."""
    times, batch = schedule.times_as_much, found.counted.batch
    if schedule.is_bound_by_launches:
        host, gpu = map(seconds_text, (schedule.host_seconds, schedule.computing_seconds))
        more = "" if batch is None else f"; batch {times * batch:,} would take about as long"
        yield "  bound by", f"launches: the host takes {host}, the GPU {gpu}{more}"


def faster_lines(schedule: Schedule, gpu: CudaProfile, times: float = 1.0) -> Iterator[Line]:
    """How much of the time another dtype saves, if that is a good part of it.

    Args:
        schedule: the step that was run.
        gpu: the GPU that it ran on.
        times: how many times a step takes what was run, if not all micro-batches were.
    """
    found = worthwhile(schedule, gpu)
    if found is not None:
        slow = " and ".join(map(short_name, found.slow))
        took, takes = (seconds_text(n * times) for n in (found.seconds, found.fast_seconds))
        fast = short_name(found.fast)
        what = f"matrix products in {slow} take {took} of it, without tensor cores"
        yield "  faster", f"{what}; with autocast to {fast} they take {takes}"
